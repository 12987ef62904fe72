# Each deliberate mistake in the timing code must make a test fail: the source with one piece of text
# replaced, compiled into the test in place of the library's own.
set(timing_source ${PROJECT_SOURCE_DIR}/csrc/device_timing.cpp)
file(READ ${timing_source} timing_text)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${timing_source})

# add_mutant(NAME FAILS "what stands there" "the mistake"): the test named FAILS has to fail.
function(add_mutant name fails right wrong)
  string(FIND "${timing_text}" "${right}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "mutant ${name}: ${timing_source} has no text ${right}")
  endif()
  string(REPLACE "${right}" "${wrong}" text "${timing_text}")
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "${text}" @ONLY)
  add_accelerator_test(mutant_${name} ${source})
  set_tests_properties(mutant_${name} PROPERTIES PASS_REGULAR_EXPRESSION "FAILED ${fails}:")
endfunction()

add_mutant(event_on_an_idle_stream r41_a_start_event_never_stands_on_an_idle_stream
  "probe_->close_gate(state.stream, kGateLimitNs)" "static_cast<void>(state)")
add_mutant(rotation_shorter_than_the_cache cold_is_the_time_with_every_input_out_of_cache
  "ceil_div(2 * cache, bytes)" "ceil_div(cache, 2 * bytes)")
add_mutant(missing_restore updated_arguments_start_every_window_from_their_own_values
  "unit[i].restore(pristine_[i])" "static_cast<void>(unit)")
