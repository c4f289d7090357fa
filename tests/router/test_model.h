#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/served_model.h"
#include "shoal/worker/v1/worker.pb.h"

namespace shoal::router {

// A model without weights: SentencePiece with a token for each byte, so every text is its bytes.
//   0 <unk>   1 <s>   2 </s>   3 + b: the byte b   259 "hello"   260 " world"   261 "END"
//   262 <|im_start|>   263 <|im_end|> (ends a turn)
inline constexpr uint32_t kBos = 1;
inline constexpr uint32_t kEos = 2;
inline constexpr uint32_t kHello = 259;
inline constexpr uint32_t kWorld = 260;
inline constexpr uint32_t kEnd = 261;
inline constexpr uint32_t kTurnStart = 262;
inline constexpr uint32_t kTurnEnd = 263;
inline constexpr uint32_t kVocabSize = 264;

inline uint32_t ByteToken(char byte) { return 3 + static_cast<unsigned char>(byte); }
// One token a byte.
std::vector<uint32_t> ByteTokens(absl::string_view text);

struct TestModelOptions {
  bool add_bos = false;
  bool add_space_prefix = false;
  std::string chat_template = "";  // empty: none
  uint32_t max_seq_len = 64;
};

worker::v1::ModelDescription DescribeTestModel(const TestModelOptions& options = {});
std::shared_ptr<const ServedModel> MakeTestModel(const TestModelOptions& options = {});

// <|im_start|>role\ncontent<|im_end|>\n ... <|im_start|>assistant\n
extern const char kChatTemplate[];

}  // namespace shoal::router
