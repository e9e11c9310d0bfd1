// `deepinfer bench gpu`: ceilings, kernels, layers and composed steps of a card.
#pragma once

#include "deepinfer/common.h"

namespace deepinfer::app {

// Adds the command to `parent`; what it gives runs it. In a build without kernels for a card the command says so.
Command add_gpu_bench(CLI::App& parent);

}  // namespace deepinfer::app
