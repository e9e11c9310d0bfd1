// Measures the tokenizer on one thread: loading, encoding by either pre-tokeniser, decoding, the Engram token map.
// Times are processor time of this process, so that other work on the machine matters little; the best round counts.
// compare_with_tokenizers.py sets the encoding beside the Python package on the same text.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "text/detokenizer.h"
#include "text/engram_token_map.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

using namespace deepinfer;  // NOLINT: a program of its own

namespace {

double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Body>
double best_seconds(int num_rounds, Body&& body) {
  double best = 1e300;
  for (int i = 0; i < num_rounds; ++i) {
    const double begin = processor_seconds();
    body();
    best = std::min(best, processor_seconds() - begin);
  }
  return best;
}

// FNV-1a over the ids as little-endian 32-bit words; the script computes the same.
uint64_t hash_of(const std::vector<int32_t>& ids) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001B3u;
  return hash;
}

size_t count_pieces(const Pretokenizer& pretokenizer, std::string_view text) {
  std::vector<size_t> ends;
  size_t num_pieces = 0;
  for (size_t begin = 0; begin < text.size(); begin = ends.back()) {
    pretokenizer.next_pieces(text, begin, ends);
    num_pieces += ends.size();
  }
  return num_pieces;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

void measure_pretokenizers(const std::string& text, int num_rounds) {
  std::vector<SplitPattern> stages;
  for (const std::string_view pattern : kDeepseekPatterns) stages.push_back({true, std::string(pattern)});
  const double megabytes = 1e-6 * static_cast<double>(text.size());
  for (const auto path : {Pretokenizer::Path::kFastest, Pretokenizer::Path::kRegexOnly}) {
    const Pretokenizer pretokenizer = Pretokenizer::create(stages, path).value();
    size_t num_pieces = 0;
    const double seconds = best_seconds(num_rounds, [&] { num_pieces = count_pieces(pretokenizer, text); });
    fmt::print("{}_pieces_mb_per_s {:.1f}\n", path == Pretokenizer::Path::kFastest ? "scanner" : "regex",
               megabytes / seconds);
    fmt::print("num_pieces {}\n", num_pieces);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string tokenizer_path, text_path;
  int num_rounds = 5;
  CLI::App app("Measures the tokenizer on one thread.");
  app.add_option("--tokenizer", tokenizer_path, "A tokenizer.json")->required();
  app.add_option("--text", text_path, "A file of UTF-8 text to encode")->required();
  app.add_option("--rounds", num_rounds, "Rounds of each measurement; the best counts")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);

  const double begin = processor_seconds();
  const Result<Tokenizer> tokenizer = Tokenizer::load(tokenizer_path);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.status().message());
    return 1;
  }
  fmt::print("load_ms {:.1f}\n", 1e3 * (processor_seconds() - begin));
  const double map_seconds = best_seconds(num_rounds, [&] { (void)build_engram_token_map(*tokenizer).ok(); });
  fmt::print("engram_map_ms {:.1f}\n", 1e3 * map_seconds);

  const std::string text = read_file(text_path);
  const double megabytes = 1e-6 * static_cast<double>(text.size());
  std::vector<int32_t> ids;
  const double encode_seconds = best_seconds(num_rounds, [&] { ids = tokenizer->encode(text); });
  fmt::print("encode_mb_per_s {:.1f}\nnum_tokens {}\nhash {:016x}\n", megabytes / encode_seconds, ids.size(),
             hash_of(ids));
  size_t num_bytes = 0;
  const double decode_seconds = best_seconds(num_rounds, [&] {
    Detokenizer detokenizer(*tokenizer);
    num_bytes = 0;
    for (const int32_t id : ids) num_bytes += detokenizer.push(id).size();
  });
  fmt::print("decode_ns_per_token {:.1f}\n", 1e9 * decode_seconds / static_cast<double>(ids.size()));
  if (num_bytes != text.size()) fmt::print("decoded {} bytes of {}\n", num_bytes, text.size());
  measure_pretokenizers(text, num_rounds);
  return 0;
}
