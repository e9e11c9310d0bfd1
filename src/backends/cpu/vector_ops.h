// The ops other than `linear`, compiled once for each processor level. See vector_ops_*.cc.
#pragma once

#include "ops/op_table.h"

namespace deepinfer::cpu {

// Each fills every entry but pack_weight and linear. All three give the same bits.
void fill_vector_ops_reference(ops::OpTable& table);
void fill_vector_ops_avx2(ops::OpTable& table);
void fill_vector_ops_avx512(ops::OpTable& table);

}  // namespace deepinfer::cpu
