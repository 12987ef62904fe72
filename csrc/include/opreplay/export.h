// SPDX-License-Identifier: MIT
#pragma once

/// Marks what the shared library exports; everything else is hidden.
#define OPREPLAY_API __attribute__((visibility("default")))
