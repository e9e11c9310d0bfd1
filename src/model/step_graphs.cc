#include "model/step_graphs.h"

#include <algorithm>

namespace deepinfer {

Status StepGraphs::run(Stream& stream, Shape shape, int64_t generation, const std::function<Status()>& body) {
  if (generation != generation_) entries_.clear();
  generation_ = generation;
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.shape == shape; });
  if (entry == entries_.end()) {
    DI_RETURN_IF_ERROR(body());
    entries_.push_back({shape, nullptr});
    return Status();
  }
  if (entry->graph == nullptr) {
    stream.begin_recording();
    Status status = body();
    std::unique_ptr<Graph> graph = stream.end_recording();
    if (!status.ok()) return status;
    entry->graph = std::move(graph);
  }
  stream.launch(*entry->graph);
  return Status();
}

}  // namespace deepinfer
