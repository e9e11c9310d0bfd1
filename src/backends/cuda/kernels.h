// The ops of the CUDA backend, with the signatures of ops/op_table.h. Each family is defined in the .cu file that bears
// its name.
#pragma once

#include <span>

#include "ops/op_table.h"

namespace deepinfer::cuda {

// linear.cu
ops::PackedWeight pack_weight(Stream& stream, const ops::WeightSource& source);
void linear(Stream& stream, std::span<const ops::LinearTask> tasks);
// elementwise.cu
void embed(Stream& stream, const ops::EmbedArgs& args);
void rms_norm(Stream& stream, const ops::RmsNormArgs& args);
void fake_quant(Stream& stream, const ops::FakeQuantArgs& args);
void swiglu(Stream& stream, const ops::SwigluArgs& args);
void gather_rows(Stream& stream, const ops::GatherRowsArgs& args);
// rows.cu
void rope_angles(Stream& stream, const ops::RopeAnglesArgs& args);
void rope(Stream& stream, const ops::RopeArgs& args);
void write_rows(Stream& stream, const ops::WriteRowsArgs& args);
void compress(Stream& stream, const ops::CompressArgs& args);
// mhc.cu
void mhc_coefficients(Stream& stream, const ops::MhcCoefficientsArgs& args);
void mhc_collapse(Stream& stream, const ops::MhcCollapseArgs& args);
void mhc_update(Stream& stream, const ops::MhcUpdateArgs& args);
void mhc_boundary(Stream& stream, const ops::MhcBoundaryArgs& args);
// latents.cu
void latents(Stream& stream, std::span<const ops::LatentTask> tasks);
// attention.cu
void attention(Stream& stream, const ops::AttentionArgs& args);
// indexer.cu
void index_select(Stream& stream, const ops::IndexSelectArgs& args);
// route.cu
void route(Stream& stream, const ops::RouteArgs& args);
// experts.cu
void prepare_experts(Stream& stream, ops::ExpertBank& bank);
void experts(Stream& stream, const ops::ExpertsArgs& args);
// engram.cu
void engram_rows(Stream& stream, const ops::EngramRowsArgs& args);
void engram_apply(Stream& stream, const ops::EngramApplyArgs& args);
// sampling.cu
void sample(Stream& stream, const ops::SampleArgs& args);

}  // namespace deepinfer::cuda
