/* SPDX-License-Identifier: MIT */
/* The C interface from a program in C: opreplay.h compiles as C and does what it says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opreplay/opreplay.h"

static int failures = 0;

#define EXPECT(condition)                                                                        \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, opreplay_last_error()); \
      ++failures;                                                                                \
    }                                                                                            \
  } while (0)

static void count(void* context) { ++*(int*)context; }

int main(int words, char** word) {
  if (words != 2) return 2;
  opreplay_bundle* bundle = NULL;
  EXPECT(opreplay_bundle_load("/no/such/file", &bundle) == OPREPLAY_INVALID);
  EXPECT(strstr(opreplay_last_error(), "/no/such/file: No such file") != NULL);
  EXPECT(opreplay_bundle_load(word[1], &bundle) == OPREPLAY_OK);
  EXPECT(opreplay_bundle_size(bundle) == 2);

  opreplay_call_info info;
  EXPECT(opreplay_bundle_call(bundle, 0, &info) == OPREPLAY_OK);
  EXPECT(strcmp(info.op, "aten::mm") == 0 && info.count == 3 && info.bytes == 48);
  EXPECT(opreplay_bundle_call(bundle, 9, &info) == OPREPLAY_INVALID);

  opreplay_call* call = NULL;
  EXPECT(opreplay_call_prepare(bundle, 0, "nowhere", &call) != OPREPLAY_OK);
  EXPECT(opreplay_call_prepare(bundle, 0, "cpu", &call) == OPREPLAY_OK);
  opreplay_bundle_free(bundle);
  EXPECT(opreplay_call_issue(call, 5) == OPREPLAY_OK);
  EXPECT(opreplay_call_synchronize(call) == OPREPLAY_OK);

  int samples_begun = 0;
  opreplay_timing_plan plan = opreplay_default_timing_plan();
  plan.limit_ns = 5000000;
  plan.on_before_sample = count;
  plan.context = &samples_begun;
  opreplay_samples samples;
  EXPECT(opreplay_call_time(call, &plan, &samples) == OPREPLAY_OK);
  EXPECT(samples.count > 0 && samples.ns[0] > 0 && samples.batch > 0);
  EXPECT(samples_begun == (int)samples.count + (int)samples.discarded);
  opreplay_samples_free(&samples);

  opreplay_graph* graph = NULL;
  EXPECT(opreplay_graph_capture(call, 1, &graph) == OPREPLAY_UNSUPPORTED);
  EXPECT(strstr(opreplay_last_error(), "OPREPLAY_GPU") != NULL);
  EXPECT(opreplay_load_library("/no/such/library.so") == OPREPLAY_INVALID);
  opreplay_call_free(call);
  return failures == 0 ? 0 : 1;
}
