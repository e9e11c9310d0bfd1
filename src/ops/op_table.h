// OpTable: every op once, as a typed function pointer. A backend fills one table a kernel set; a null entry is an op
// that the backend lacks. Callers use the functions in ops/*.h, which check shapes and then call through the stream's
// table.
#pragma once

#include <span>

#include "ops/attention.h"
#include "ops/compressor.h"
#include "ops/elementwise.h"
#include "ops/engram.h"
#include "ops/indexer.h"
#include "ops/latents.h"
#include "ops/linear.h"
#include "ops/mhc.h"
#include "ops/moe.h"
#include "ops/sampling.h"

namespace deepinfer::ops {

struct OpTable {
  PackedWeight (*pack_weight)(Stream&, const WeightSource&) = nullptr;
  void (*linear)(Stream&, std::span<const LinearTask>) = nullptr;
  void (*embed)(Stream&, const EmbedArgs&) = nullptr;
  void (*rms_norm)(Stream&, const RmsNormArgs&) = nullptr;
  void (*fake_quant)(Stream&, const FakeQuantArgs&) = nullptr;
  void (*rope_angles)(Stream&, const RopeAnglesArgs&) = nullptr;
  void (*rope)(Stream&, const RopeArgs&) = nullptr;
  void (*swiglu)(Stream&, const SwigluArgs&) = nullptr;
  void (*gather_rows)(Stream&, const GatherRowsArgs&) = nullptr;
  void (*write_rows)(Stream&, const WriteRowsArgs&) = nullptr;
  void (*latents)(Stream&, std::span<const LatentTask>) = nullptr;
  void (*mhc_coefficients)(Stream&, const MhcCoefficientsArgs&) = nullptr;
  void (*mhc_collapse)(Stream&, const MhcCollapseArgs&) = nullptr;
  void (*mhc_update)(Stream&, const MhcUpdateArgs&) = nullptr;
  void (*mhc_boundary)(Stream&, const MhcBoundaryArgs&) = nullptr;
  void (*attention)(Stream&, const AttentionArgs&) = nullptr;
  void (*compress)(Stream&, const CompressArgs&) = nullptr;
  void (*index_select)(Stream&, const IndexSelectArgs&) = nullptr;
  void (*route)(Stream&, const RouteArgs&) = nullptr;
  void (*prepare_experts)(Stream&, ExpertBank&) = nullptr;
  void (*experts)(Stream&, const ExpertsArgs&) = nullptr;
  void (*engram_rows)(Stream&, const EngramRowsArgs&) = nullptr;
  void (*engram_apply)(Stream&, const EngramApplyArgs&) = nullptr;
  void (*sample)(Stream&, const SampleArgs&) = nullptr;
};

}  // namespace deepinfer::ops
