"""The random fill against a plain reading of the rule in ``opreplay/random.h``."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay._C import fill_random_, fill_random_integers_

MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF


def split_mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def word(index: int, seed: int, stream: int) -> int:
    key = split_mix(split_mix(split_mix(seed) ^ stream) ^ (index >> 32))
    x = (index & MASK32) ^ (key & MASK32)
    x ^= x >> 16
    x = (x * 0x7FEB352D) & MASK32
    x ^= x >> 15
    x ^= key >> 32
    x = (x * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def own_bits(element: int, bits: int, seed: int, stream: int) -> int:
    """The `bits` bits of the word sequence that an element lies on."""
    first = element * bits
    value = word(first // 32, seed, stream) | word(first // 32 + 1, seed, stream) << 32
    return (value >> first % 32) & ((1 << bits) - 1)


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def uniform(element: int, bits: int, significand: int, seed: int, stream: int) -> float:
    upper = own_bits(element, bits, seed, stream) >> (bits - significand)
    return signed(upper, significand) / 2 ** (significand - 1)


FLOATS = {
    torch.float64: (64, 53),
    torch.float32: (32, 24),
    torch.float16: (16, 11),
    torch.bfloat16: (16, 8),
    torch.float8_e4m3fn: (8, 4),
    torch.float8_e4m3fnuz: (8, 4),
    torch.float8_e5m2: (8, 3),
    torch.float8_e5m2fnuz: (8, 3),
}
INTEGERS = {
    torch.bool: (0, 1),
    torch.uint8: (0, 2**8 - 1),
    torch.int8: (-(2**7), 2**7 - 1),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.uint16: (0, 2**16 - 1),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.uint32: (0, 2**32 - 1),
    torch.int64: (-(2**63), 2**63 - 1),
    torch.uint64: (0, 2**63 - 1),
}

seeds = st.integers(0, MASK64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(count=st.integers(0, 70), seed=seeds, stream=seeds)
@settings(max_examples=25, deadline=None)
def test_each_float_is_the_signed_upper_bits_of_its_own_bits(dtype, count, seed, stream):
    tensor = torch.empty(count, dtype=dtype)
    fill_random_(tensor, seed, stream)
    bits, significand = FLOATS[dtype]
    expected = [uniform(e, bits, significand, seed, stream) for e in range(count)]
    assert tensor.double().tolist() == expected


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_are_pairs_of_floats(dtype):
    tensor = torch.empty(33, dtype=dtype)
    with_parts = torch.view_as_real(tensor)
    parts = torch.empty(66, dtype=with_parts.dtype)
    fill_random_(tensor, 5, 6)
    fill_random_(parts, 5, 6)
    assert torch.equal(with_parts.reshape(-1), parts)


def test_e8m0_holds_powers_of_two_up_to_one():
    tensor = torch.empty(1001, dtype=torch.float8_e8m0fnu)
    fill_random_(tensor, 3)
    exponents = [own_bits(e, 8, 3, 0) >> 5 for e in range(1001)]
    assert tensor.float().tolist() == [2.0 ** (e - 7) for e in exponents]


def test_float4_holds_two_codes_per_byte_lower_half_first():
    codes = {0.0: 0b0000, 0.5: 0b0001, -1.0: 0b1010, -0.5: 0b1001}  # sign, exponent, mantissa
    tensor = torch.empty(101, dtype=torch.float4_e2m1fn_x2)
    fill_random_(tensor, 9)
    nibbles = [codes[uniform(e, 4, 2, 9, 0)] for e in range(202)]
    assert tensor.view(torch.uint8).tolist() == [
        low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True)
    ]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_cover_minus_one_to_below_one(dtype):
    tensor = torch.empty(1 << 16, dtype=dtype)
    fill_random_(tensor, 1)
    values = tensor.double()
    assert values.min() >= -1
    assert values.max() < 1
    assert values.unique().numel() >= min(2 ** FLOATS[dtype][1], 1 << 15)
    # The mean of 2^16 draws has a spread of 1/444; the lattice leans by half a step.
    assert abs(values.mean() + 0.5 / 2 ** (FLOATS[dtype][1] - 1)) < 5 / 444


@st.composite
def integer_ranges(draw):
    dtype = draw(st.sampled_from(list(INTEGERS)))
    lowest, highest = INTEGERS[dtype]
    low = draw(st.integers(lowest, highest))
    width = draw(st.sampled_from([1, 2, 3, 10, 128, 256, 1000, 1 << 32, (1 << 32) + 1, 1 << 63]))
    return dtype, low, min(low + width, highest + 1, 2**63 - 1)


@given(request=integer_ranges(), count=st.integers(0, 40), seed=seeds, stream=seeds)
@settings(max_examples=150, deadline=None)
def test_each_integer_follows_the_documented_rule(request, count, seed, stream):
    dtype, low, high = request
    if low >= high:
        return
    tensor = torch.empty(count, dtype=dtype)
    fill_random_integers_(tensor, low, high, seed, stream)
    bits = 8 * tensor.element_size()
    n = high - low
    if n & (n - 1) == 0 and n <= 1 << bits:
        drop = bits - (n.bit_length() - 1)
        expected = [low + (own_bits(e, bits, seed, stream) >> drop) for e in range(count)]
    elif n <= 1 << 32:
        expected = [low + (word(e, seed, stream) * n >> 32) for e in range(count)]
    else:
        expected = [low + (own_bits(e, 64, seed, stream) * n >> 64) for e in range(count)]
    assert [int(v) for v in tensor.tolist()] == expected


def test_r43_the_same_bits_for_any_number_of_threads():
    one, two = (
        torch.empty(1 << 20, dtype=torch.bfloat16),
        torch.empty(1 << 20, dtype=torch.bfloat16),
    )
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        fill_random_(one, 11)
        torch.set_num_threads(4)
        fill_random_(two, 11)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.view(torch.int16), two.view(torch.int16))


def test_r43_seed_and_stream_choose_the_bits():
    def filled(seed: int, stream: int) -> torch.Tensor:
        tensor = torch.empty(1000)
        fill_random_(tensor, seed, stream)
        return tensor

    assert torch.equal(filled(1, 2), filled(1, 2))
    assert not torch.equal(filled(1, 2), filled(2, 2))
    assert not torch.equal(filled(1, 2), filled(1, 3))
    assert not torch.equal(filled(1, 2), filled(2, 1))


def test_a_view_that_starts_at_an_odd_element_gets_the_same_bits():
    storage = torch.zeros(101, dtype=torch.bfloat16)
    aligned = torch.empty(99, dtype=torch.bfloat16)
    fill_random_(storage[1:100], 4)
    fill_random_(aligned, 4)
    assert torch.equal(storage[1:100], aligned)
    assert storage[0] == 0
    assert storage[100] == 0


def test_a_permuted_tensor_is_filled_in_the_order_of_its_memory():
    flat = torch.empty(24)
    permuted = torch.empty(4, 6).t()
    fill_random_(flat, 2)
    fill_random_(permuted, 2)
    assert torch.equal(permuted.t().reshape(-1), flat)


def test_the_dispatcher_and_the_extension_call_the_same_function():
    by_dispatcher, by_extension = torch.empty(50), torch.empty(50)
    torch.ops.opreplay.fill_random_(by_dispatcher, 8, 9)
    fill_random_(by_extension, 8, 9)
    assert torch.equal(by_dispatcher, by_extension)
    integers, expected = torch.empty(50, dtype=torch.int32), torch.empty(50, dtype=torch.int32)
    torch.ops.opreplay.fill_random_integers_(integers, -5, 7, 8, 9)
    fill_random_integers_(expected, -5, 7, 8, 9)
    assert torch.equal(integers, expected)


def test_a_meta_tensor_is_left_alone():
    fill_random_(torch.empty(5, device="meta"), 1)
    fill_random_integers_(torch.empty(5, device="meta", dtype=torch.int32), 0, 3, 1)


def test_floats_and_integers_refuse_each_others_dtypes():
    with pytest.raises(TypeError, match="Int; use fill_random_integers"):
        torch.ops.opreplay.fill_random_(torch.empty(3, dtype=torch.int32), 0)
    with pytest.raises(TypeError, match="Float; use fill_random for"):
        torch.ops.opreplay.fill_random_integers_(torch.empty(3), 0, 2, 0)


def test_a_tensor_with_holes_is_refused():
    with pytest.raises(ValueError, match="dense in memory"):
        torch.ops.opreplay.fill_random_(torch.empty(10)[::2], 0)
    with pytest.raises(ValueError, match="dense in memory"):
        torch.ops.opreplay.fill_random_(torch.empty(1).expand(5), 0)


@pytest.mark.parametrize(
    ("dtype", "low", "high", "message"),
    [
        (torch.int32, 5, 5, r"low < high, got \[5, 5\)"),
        (torch.int8, -129, 0, r"\[-128, 127\] of Char, got \[-129, 0\)"),
        (torch.uint8, 0, 257, r"\[0, 255\] of Byte, got \[0, 257\)"),
        (torch.bool, 0, 3, r"\[0, 1\] of Bool, got \[0, 3\)"),
    ],
    ids=["empty", "below", "above", "bool"],
)
def test_a_range_outside_the_dtype_is_refused(dtype, low, high, message):
    with pytest.raises(ValueError, match=message):
        torch.ops.opreplay.fill_random_integers_(torch.empty(3, dtype=dtype), low, high, 0)


def test_the_smallest_step_of_each_float_is_reached():
    tensor = torch.empty(1 << 20, dtype=torch.float16)
    fill_random_(tensor, 1)
    steps = tensor.double() * 2**10
    assert torch.equal(steps, steps.round())
    assert math.gcd(*(int(v) for v in steps[:1000])) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_r43_device_and_cpu_fill_the_same_floats(dtype):
    here = torch.empty(100_003, dtype=dtype)
    there = torch.empty(100_003, dtype=dtype, device="cuda")
    fill_random_(here, 3, 4)
    fill_random_(there, 3, 4)
    assert torch.equal(here.view(torch.uint8), there.cpu().view(torch.uint8))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("high", [2, 100, 128])
def test_r43_device_and_cpu_fill_the_same_integers(dtype, high):
    high = min(high, INTEGERS[dtype][1] + 1)
    here = torch.empty(100_003, dtype=dtype)
    there = torch.empty(100_003, dtype=dtype, device="cuda")
    fill_random_integers_(here, 0, high, 3)
    fill_random_integers_(there, 0, high, 3)
    assert torch.equal(here.view(torch.uint8), there.cpu().view(torch.uint8))
