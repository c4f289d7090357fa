#include "model/text/detokenizer.h"

#include "absl/strings/strip.h"
#include "model/text/tokenizer.h"

namespace shoal::text {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, const Options& options)
    : tokenizer_(tokenizer),
      skip_special_tokens_(options.skip_special_tokens),
      strip_next_space_(options.strip_leading_space && tokenizer->adds_space_prefix()) {}

void Detokenizer::Append(int32_t id, std::string* out) {
  const bool is_control = tokenizer_->IsControl(id);
  if (is_control && skip_special_tokens_) return;
  absl::string_view bytes = tokenizer_->TokenBytes(id);
  if (strip_next_space_ && !is_control && !bytes.empty()) {
    absl::ConsumePrefix(&bytes, " ");
    strip_next_space_ = false;
  }
  assembler_.Append(bytes, out);
}

void Detokenizer::Finish(std::string* out) { assembler_.Finish(out); }

}  // namespace shoal::text
