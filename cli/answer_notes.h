#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shoal/v1/inference.pb.h"

namespace shoal::cli {

// What a user should know of an answer beside its text: which choices were cut, and, if asked, how
// much was computed and how fast.
class AnswerNotes {
 public:
  // `max_tokens`: of the request; 0: none.
  explicit AnswerNotes(uint32_t max_tokens) : max_tokens_(max_tokens) {}

  void Add(const v1::GenerateStreamResponse& message);
  void Add(const v1::GenerateResponse& response);

  // "(stopped: --max-tokens 64)", a line for every choice that was cut. Empty if none was.
  std::string Cuts() const;
  // "12 prompt tokens (8 cached), 64 output tokens, 0.12 s to the first, 42.1 tokens/s". A line.
  std::string Stats() const;

 private:
  void Add(const v1::Choice& choice);

  const uint32_t max_tokens_;
  std::map<uint32_t, v1::FinishReason> reasons_;  // by choice
  v1::Usage usage_;
  v1::Timings timings_;
};

}  // namespace shoal::cli
