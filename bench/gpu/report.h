// The tables of the GPU benchmark, at most 100 columns wide, and their JSON form.
#pragma once

#include <string>

#include "base/status.h"
#include "gpu/results.h"

namespace deepinfer::bench {

void print_header(const Results& results);
void print_ceilings(const Results& results);
// Rows from `first` on.
void print_rows(const Results& results, size_t first);
void print_composed(const Results& results);
void print_goals(const Results& results);
Status write_json(const Results& results, const std::string& path);

// Adds what another program measured of the same shapes in the same session: {"rows": [{"section", "name", "rows",
// "us"}, ...], "peer": "what it is"} becomes the peer of our row of that name, if it has none.
Status merge_peers(Results& results, const std::string& path);

}  // namespace deepinfer::bench
