/* SPDX-License-Identifier: MIT */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "opreplay/export.h"

/*
 * The C interface: bundles, calls, graphs and timing for harnesses in C or with another C++
 * run-time library. Every function that can fail returns a status; the text is
 * opreplay_last_error(). A call and a graph belong to one thread at a time; a bundle may be shared.
 */
#ifdef __cplusplus
extern "C" {
#endif

typedef struct opreplay_bundle opreplay_bundle;
typedef struct opreplay_call opreplay_call;
typedef struct opreplay_graph opreplay_graph;

typedef enum opreplay_status {
  OPREPLAY_OK = 0,
  OPREPLAY_INVALID = 1,     /* a bad file, value or index, or an operator that is not registered */
  OPREPLAY_UNSUPPORTED = 2, /* this build or device has no such thing */
  OPREPLAY_OUT_OF_MEMORY = 3,
  OPREPLAY_FAILED = 4 /* an operator raised */
} opreplay_status;

/* What went wrong in the last call on this thread that failed; valid until the next that fails. */
OPREPLAY_API const char* opreplay_last_error(void);

/* Loads a shared library that registers operators; it stays loaded. */
OPREPLAY_API opreplay_status opreplay_load_library(const char* path);

OPREPLAY_API opreplay_status opreplay_bundle_load(const char* path, opreplay_bundle** bundle);
OPREPLAY_API void opreplay_bundle_free(opreplay_bundle* bundle);
OPREPLAY_API size_t opreplay_bundle_size(const opreplay_bundle* bundle);

/* One call of a bundle. The texts live as long as the bundle. */
typedef struct opreplay_call_info {
  const char* op;       /* "aten::mm" */
  const char* overload; /* "" for the default overload */
  const char* schema;
  const char* signature;   /* stable hash of the call */
  int64_t count;           /* recorded calls that it stands for */
  double recorded_host_us; /* their median [microseconds] */
  int64_t bytes;           /* of its storages */
} opreplay_call_info;

OPREPLAY_API opreplay_status opreplay_bundle_call(const opreplay_bundle* bundle,
                                                  size_t index,
                                                  opreplay_call_info* info);

/* Makes the inputs of a call on a device: "cpu", "cuda:0". It keeps what it needs of the bundle. */
OPREPLAY_API opreplay_status opreplay_call_prepare(const opreplay_bundle* bundle,
                                                   size_t index,
                                                   const char* device,
                                                   opreplay_call** call);
OPREPLAY_API void opreplay_call_free(opreplay_call* call);

/* Calls n times on the current stream of this thread. Never synchronises. */
OPREPLAY_API opreplay_status opreplay_call_issue(opreplay_call* call, int64_t n);

/* Waits for the device of a call. */
OPREPLAY_API opreplay_status opreplay_call_synchronize(opreplay_call* call);

/* How long and how exactly to measure; see timing.h. */
typedef struct opreplay_timing_plan {
  int64_t warmup_ns;
  int64_t limit_ns;
  double relative_error;
  int64_t min_samples;
  int64_t max_samples;
  int64_t batch_ns;
  int64_t max_batch;
  void (*on_before_sample)(void* context); /* may be NULL */
  void (*on_after_sample)(void* context);  /* may be NULL */
  void* context;
} opreplay_timing_plan;

OPREPLAY_API opreplay_timing_plan opreplay_default_timing_plan(void);

/* Times of one measurement. */
typedef struct opreplay_samples {
  double* ns;        /* time of one call in each sample [nanoseconds] */
  size_t count;      /* samples */
  int64_t batch;     /* calls per sample */
  int64_t discarded; /* samples refused */
} opreplay_samples;

/* Times a call with its inputs warm. Give the samples back with opreplay_samples_free. */
OPREPLAY_API opreplay_status opreplay_call_time(opreplay_call* call,
                                                const opreplay_timing_plan* plan,
                                                opreplay_samples* samples);
OPREPLAY_API void opreplay_samples_free(opreplay_samples* samples);

/* Captures a call, `times` times over, for devices that have graphs. The call may be freed. */
OPREPLAY_API opreplay_status opreplay_graph_capture(const opreplay_call* call,
                                                    int64_t times,
                                                    opreplay_graph** graph);
OPREPLAY_API void opreplay_graph_free(opreplay_graph* graph);

/* Queues the graph n times on a stream of its own. Does not wait. */
OPREPLAY_API opreplay_status opreplay_graph_replay(opreplay_graph* graph, int64_t n);
OPREPLAY_API opreplay_status opreplay_graph_synchronize(opreplay_graph* graph);

#ifdef __cplusplus
}
#endif
