// The loop for AMX, in a file of its own for the same reason as loops_avx512.cc.
#include <immintrin.h>

#include <cstdint>

namespace deepinfer::bench {

// Four sums of 16 x 16: at 16 cycles each, more than the latency of one.
void dot_bf16_amx(int64_t rounds) {
  struct {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    unsigned short line_bytes[16] = {64, 64, 64, 64, 64, 64};
    unsigned char num_lines[16] = {16, 16, 16, 16, 16, 16};
  } registers;
  __asm__ volatile("ldtilecfg %0" : : "m"(registers));  // the compiler's own name for it tells of 8 of its 64 bytes
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
}

}  // namespace deepinfer::bench
