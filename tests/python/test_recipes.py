import pytest
import torch
from made_calls import call, f32, foreign_call, i64, made, make

from opreplay import recipes
from opreplay.inputs import make_inputs
from opreplay.recipes import (
    InputTensor,
    Recipe,
    RecipeCall,
    RecipeError,
    find_recipe,
    list_recipes,
    recipe,
    registry,
    remove_recipe,
)
from opreplay.recipes.registry import RecipeRegistry, registering_as
from opreplay.trace.call import Skipped


@pytest.fixture
def registered():
    """Registers recipes for a test and takes them back after it."""
    functions = []

    def register(*ops, origin="user", **options):
        def decorate(function):
            with registering_as(origin):
                recipe(*ops, **options)(function)
            functions.append(function)
            return function

        return decorate

    yield register
    for function in functions:
        remove_recipe(function)


def input_tensor(value, *, default="random", seed=0, stream=0):
    return InputTensor(value, value.view(-1), seed=seed, stream=stream, default=default)


def test_a_recipe_fills_in_place_and_its_line_is_on_the_inputs(registered):
    @registered("custom::lookup")
    def lookup(call):
        rows = call.tensor("table").dims[0]
        call.tensor("ids").fill_integers(0, rows)
        return f"ids uniform in [0, {rows})"

    inputs = make(foreign_call("custom::lookup", table=f32(50, 4), ids=i64(2000)))
    assert inputs.recipe == "ids uniform in [0, 50)"
    assert inputs.arguments[1].unique().tolist() == list(range(50))
    assert inputs.assumptions == ()


def test_r6_a_recipe_serves_the_exact_name_only(registered):
    @registered("custom::paged_attention")
    def fill(call):
        return "ran"

    assert find_recipe("custom::paged_attention").function is fill
    assert find_recipe("custom::my_paged_attention_v9") is None
    assert find_recipe("other::paged_attention") is None
    assert find_recipe("paged_attention") is None


@pytest.mark.parametrize("name", ["embedding", "aten::", "::embedding", "aten::*", "aten::a.b", ""])
def test_r6_a_pattern_is_refused_as_a_name(name):
    with pytest.raises(ValueError, match="no exact operator name"):
        recipe(name)(lambda call: None)


def test_a_recipe_needs_a_name():
    with pytest.raises(ValueError, match="at least one operator"):
        recipe()(lambda call: None)


def test_r7_arguments_are_found_by_name_whatever_their_order(registered):
    @registered("custom::lookup")
    def lookup(call):
        call.tensor("ids").fill_integers(0, call.tensor("table").dims[0])

    for arguments in ({"table": f32(3), "ids": i64(99)}, {"ids": i64(99), "table": f32(3)}):
        inputs = made(foreign_call("custom::lookup", **arguments))
        assert inputs.ids.unique().tolist() == [0, 1, 2]


def test_r7_a_renamed_argument_fails_with_the_names_there_and_tensors_untouched(registered):
    touched = []

    @registered("custom::lookup")
    def lookup(call):
        touched.append(call)
        call.tensor("ids").fill_integers(0, 3)

    skipped = make(foreign_call("custom::lookup", table=f32(3), indices=i64(9)))
    assert skipped == Skipped(
        "recipe_failed",
        f"{__name__}.{lookup.__qualname__} for custom::lookup: "
        "custom::lookup has no argument 'ids'; it has table, indices",
    )
    (call,) = touched
    assert not any(tensor._filled for tensor in call.present("table", "indices"))


def test_r7_a_value_of_another_kind_is_an_error_that_names_it():
    call = RecipeCall("custom::op", {"a": None, "b": 3, "c": []}, {})
    with pytest.raises(RecipeError, match="argument 'a' of custom::op is None, not a tensor"):
        call.tensor("a")
    with pytest.raises(RecipeError, match="argument 'b' of custom::op is a int, not a tensor"):
        call.tensor("b")
    with pytest.raises(RecipeError, match="argument 'b' of custom::op is a int, not a tensor list"):
        call.tensors("b")
    assert call.tensors("c") == ()
    assert call.value("b") == 3
    with pytest.raises(RecipeError, match="no argument 'd'; it has a, b, c"):
        call.value("d")


def test_whatever_a_recipe_raises_fails_the_row(registered):
    @registered("custom::op")
    def broken(call):
        raise ZeroDivisionError("by zero")

    skipped = make(foreign_call("custom::op", x=f32(3)))
    assert skipped.reason == "recipe_failed"
    assert skipped.detail.endswith("custom::op: ZeroDivisionError: by zero")


def test_a_recipe_runs_again_for_each_materialisation(registered):
    runs = []

    @registered("custom::op")
    def fill(call):
        runs.append(call)
        call.tensor("x").fill_integers(5, 6)

    first, second = (made(foreign_call("custom::op", x=i64(3))).x for _ in range(2))
    assert len(runs) == 2
    assert first.tolist() == second.tolist() == [5, 5, 5]
    assert first.data_ptr() != second.data_ptr()


def test_r2_user_recipes_beat_plug_ins_and_plug_ins_beat_built_in_ones(registered):
    @registered("custom::op", origin="user")
    def user(call): ...

    @registered("custom::op", origin="plug-in")
    def plug_in(call): ...

    @registered("custom::op", origin="built-in")
    def built_in(call): ...

    known = RecipeRegistry()
    for origin, function in (("user", user), ("plug-in", plug_in), ("built-in", built_in)):
        known.add(Recipe(function, ("custom::op",), (), origin))
        assert known.find("custom::op").function is user
    known.remove(user)
    assert known.find("custom::op").function is plug_in
    known.remove(plug_in)
    assert known.find("custom::op").function is built_in


def test_r2_a_user_recipe_replaces_a_built_in_one_until_it_is_removed():
    built_in = find_recipe("aten::embedding")

    @recipe("aten::embedding")
    def mine(call):
        call.tensor("indices").fill_integers(3, 4)
        return "always row 3"

    resolved = call("aten::embedding", weight=f32(10, 2), indices=i64(5))
    inputs = make(resolved)
    assert inputs.recipe == "always row 3"
    assert inputs.arguments[1].tolist() == [3] * 5
    remove_recipe(mine)
    assert find_recipe("aten::embedding") is built_in
    assert make(resolved).recipe == "indices uniform in [0, 10)"


def test_the_latest_registration_of_an_origin_wins():
    known = RecipeRegistry()
    functions = [lambda call: None, lambda call: None]
    for function in functions:
        known.add(Recipe(function, ("a::b",), (), "user"))
    assert known.find("a::b").function is functions[1]
    known.remove(functions[1])
    assert known.find("a::b").function is functions[0]


def test_removing_what_is_not_registered_is_an_error():
    with pytest.raises(KeyError, match="not a registered recipe"):
        remove_recipe(lambda call: None)


def test_r24_the_registry_is_listed_with_origin_names_and_operators(registered):
    @registered("custom::one", "custom::two")
    def mine(call): ...

    listed = list_recipes()
    assert listed[-1].ops == ("custom::one", "custom::two")
    assert listed[-1].origin == "user"
    assert listed[-1].name.endswith("mine")
    assert {entry.origin for entry in listed[:-1]} == {"built-in"}


def test_every_built_in_name_is_registered_once():
    ops = [op for entry in list_recipes() for op in entry.ops]
    assert sorted({op for op in ops if ops.count(op) > 1}) == []


class EntryPoint:
    """An installed package's entry point, as importlib.metadata shows it."""

    def __init__(self, value, load):
        self.value = value
        self.load = load


@pytest.fixture
def plug_ins(monkeypatch):
    """Lets a test say which recipe modules are installed."""

    def install(*points):
        monkeypatch.setattr(registry, "_plugins_loaded", False)
        monkeypatch.setattr(
            registry,
            "entry_points",
            lambda *, group: points if group == recipes.ENTRY_POINT_GROUP else (),
        )

    return install


def test_plug_ins_are_loaded_once_and_register_as_such(plug_ins):
    def function(call): ...

    loads = []

    def load():
        loads.append(1)
        recipe("custom::plugged")(function)

    plug_ins(EntryPoint("package.recipes", load))
    assert find_recipe("custom::plugged").origin == "plug-in"
    find_recipe("custom::plugged")
    assert loads == [1]
    remove_recipe(function)


def test_a_plug_in_that_breaks_costs_its_own_recipes_only(plug_ins, caplog):
    def load():
        raise ImportError("no such library")

    plug_ins(EntryPoint("package.recipes", load))
    assert find_recipe("aten::embedding") is not None
    assert "recipes of package.recipes are not loaded: no such library" in caplog.text


def test_an_argument_that_belongs_on_the_cpu_is_made_there(registered, monkeypatch):
    @registered("custom::op", cpu=("lengths",))
    def fill(call):
        return None

    resolved = foreign_call("custom::op", x=f32(3), lengths=i64(3))
    monkeypatch.setattr(InputTensor, "fill", lambda self: None)
    inputs = make_inputs(resolved, device="meta", seed=0, memory_budget=1 << 20)
    assert inputs.arguments[0].device.type == "meta"
    assert inputs.arguments[1].device.type == "cpu"
    skipped = make(foreign_call("custom::op", x=f32(3)))
    assert skipped.detail.endswith("custom::op has no argument 'lengths'; it has x")


# --- the ways to fill a tensor ---


@pytest.mark.parametrize(
    ("dtype", "low", "high", "least", "most"),
    [
        (torch.int64, -3, 4, -3, 3),
        (torch.int8, 0, 1000, 0, 127),
        (torch.uint8, -5, 3, 0, 2),
        (torch.bool, 0, 9, False, True),
        (torch.int32, 7, 8, 7, 7),
    ],
)
def test_integers_are_uniform_and_cut_to_the_dtype(dtype, low, high, least, most):
    value = torch.empty(5000, dtype=dtype)
    input_tensor(value).fill_integers(low, high)
    assert value.min() == least
    assert value.max() == most


def test_an_empty_range_is_an_error_unless_the_tensor_is_empty():
    with pytest.raises(RecipeError, match=r"no torch.int64 value lies in \[0, 0\)"):
        input_tensor(torch.empty(1, dtype=torch.int64)).fill_integers(0, 0)
    input_tensor(torch.empty(0, dtype=torch.int64)).fill_integers(0, 0)


def test_integers_are_refused_for_floats_and_floats_for_integers():
    with pytest.raises(RecipeError, match=r"integers in \[0, 3\) are needed, .*float32"):
        input_tensor(torch.empty(1)).fill_integers(0, 3)
    with pytest.raises(RecipeError, match=r"floats in \[0, 3\) are needed, .*int32"):
        input_tensor(torch.empty(1, dtype=torch.int32)).fill_floats(0, 3)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2],
    ids=str,
)  # fmt: skip
def test_floats_fill_a_range(dtype):
    value = torch.empty(4096, dtype=dtype)
    input_tensor(value).fill_floats(0.5, 1.5)
    wide = value.double()
    assert wide.min() >= 0.5
    assert wide.max() <= 1.5
    assert 0.85 < wide.mean() < 1.05


def test_both_parts_of_complex_numbers_fill_a_range():
    value = torch.empty(4096, dtype=torch.complex64)
    input_tensor(value).fill_floats(2, 3)
    for part in (value.real, value.imag):
        assert ((part >= 2) & (part <= 3)).all()


def test_exponents_of_eight_bits_are_positive_as_they_are():
    value = torch.empty(64, dtype=torch.float8_e8m0fnu)
    input_tensor(value).fill_floats(0.5, 1.5)
    assert (value.float() > 0).all()


def test_a_tensor_is_filled_by_default_when_it_is_first_read_and_not_again():
    value = torch.empty(100, dtype=torch.int64)
    tensor = input_tensor(value, default=(3, 5))
    assert set(tensor.value.tolist()) == {3, 4}
    value.zero_()
    assert tensor.value.sum() == 0


def test_what_a_recipe_wrote_is_not_overwritten_by_the_default():
    tensor = input_tensor(torch.empty(3, dtype=torch.int64), default=(3, 5))
    tensor.write_list([7, 8, 9])
    assert tensor.value.tolist() == [7, 8, 9]


def test_values_are_written_once_along_a_dimension_of_stride_zero():
    storage = torch.empty(3, dtype=torch.int64)
    view = storage.as_strided((2, 3), (0, 1))
    tensor = InputTensor(view, storage, seed=0, stream=0, default="none")
    tensor.write(torch.tensor([[1, 2, 3], [1, 2, 3]]))
    assert storage.tolist() == [1, 2, 3]


def test_memory_between_written_elements_is_zero():
    storage = torch.full((6,), 9)
    view = storage.as_strided((3,), (2,))
    InputTensor(view, storage, seed=0, stream=0, default="none").write_list([1, 2, 3])
    assert storage.tolist() == [1, 0, 2, 0, 3, 0]


def test_elements_that_overlap_otherwise_cannot_be_written():
    storage = torch.empty(5)
    view = storage.as_strided((3, 3), (1, 1))
    with pytest.raises(RecipeError, match="elements share memory"):
        InputTensor(view, storage, seed=0, stream=0, default="none").write(torch.zeros(3, 3))


def test_values_of_another_shape_are_refused():
    tensor = input_tensor(torch.empty(2, 3))
    with pytest.raises(RecipeError, match=r"values are \(3, 2\), the tensor is \(2, 3\)"):
        tensor.write(torch.zeros(3, 2))
    with pytest.raises(RecipeError, match="5 values for a tensor of 6 elements"):
        tensor.write_list([1, 2, 3, 4, 5])
    with pytest.raises(RecipeError, match="7 true elements do not fit into 6"):
        tensor.write_true(7)


@pytest.mark.parametrize(
    ("dims", "over", "count"),
    [((7,), None, 7), ((7,), [0], 100), ((4, 6), [1], 6), ((4, 6), [0], 5), ((4, 6), [-1], 1000),
     ((2, 3, 4), [-2, -1], 12), ((2, 3, 4), None, 24), ((), [0], 3), ((5, 0), [1], 3)],
)  # fmt: skip
def test_distinct_values_never_repeat_over_the_chosen_dimensions(dims, over, count):
    value = torch.empty(dims, dtype=torch.int64)
    input_tensor(value).write_distinct(count, over=over)
    assert value.numel() == 0 or (value.min() >= 0 and value.max() < count)
    chosen = list(range(len(dims))) if over is None else [d % max(len(dims), 1) for d in over]
    if value.numel():
        rows = value.movedim(chosen, list(range(len(chosen)))).flatten(0, len(chosen) - 1)
        columns = rows.reshape(len(rows), -1).T.tolist()
        assert all(len(set(column)) == len(column) for column in columns)


def test_distinct_values_are_spread_over_the_range():
    value = torch.empty(1000, dtype=torch.int64)
    input_tensor(value).write_distinct(1_000_000)
    steps = value.diff().abs()
    assert steps.min() > 1000  # no two neighbours share a page
    assert torch.histc(value.double(), 10, 0, 1_000_000).min() > 50


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_so_many_elements_are_true(count):
    value = torch.empty(2, 3, dtype=torch.bool)
    input_tensor(value).write_true(count)
    assert value.sum() == count


def test_draws_of_a_tensor_differ_and_repeat_with_the_seed():
    def draw(seed, number):
        tensor = input_tensor(torch.empty(3, dtype=torch.int64), seed=seed)
        return tensor.random_integers([50], 0, 1000, draw=number).tolist()

    assert draw(1, 1) == draw(1, 1)
    assert draw(1, 1) != draw(1, 2)
    assert draw(1, 1) != draw(2, 1)
    with pytest.raises(ValueError, match="draw = 256"):
        draw(1, 256)
