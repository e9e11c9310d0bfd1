// Prompts: plain English stories, made from sentences written for this purpose. The same seed gives the same story.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::bench {

// Ends in the middle of a sentence, so that a model has something to say.
std::string make_story(uint64_t seed, int64_t num_sentences);

}  // namespace deepinfer::bench
