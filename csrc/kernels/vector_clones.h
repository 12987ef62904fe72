// SPDX-License-Identifier: MIT
#pragma once

/// Compiles a function once for each vector width and chooses when the library is loaded, so that a
/// portable wheel keeps the speed of the machine. Sanitizers instrument the chooser, which runs
/// before they are initialised, so they get the plain function.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define OPREPLAY_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define OPREPLAY_VECTOR_CLONES
#endif
