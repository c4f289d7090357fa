#include "worker/model_description.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/quant/block_formats.h"

namespace shoal::worker {
namespace {

// An id that the file may lack: -1.
absl::Status ReadId(const model::GgufFile& file, absl::string_view key, int32_t* id) {
  *id = -1;
  const std::string full = absl::StrCat("tokenizer.ggml.", key);
  if (!file.Has(full)) return absl::OkStatus();
  SHOAL_ASSIGN_OR_RETURN(const uint64_t value, file.GetU64(full));
  // Files that lack a token also store 2^32 - 1.
  if (value == 0xffffffffu) return absl::OkStatus();
  if (value > 0x7fffffffu) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.name(), ": ", full, " is ", value, ", which is no token id"));
  }
  *id = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::Status ReadFlag(const model::GgufFile& file, absl::string_view key,
                      void (v1::Vocabulary::*set)(bool), v1::Vocabulary* vocabulary) {
  const std::string full = absl::StrCat("tokenizer.ggml.", key);
  if (!file.Has(full)) return absl::OkStatus();
  SHOAL_ASSIGN_OR_RETURN(const bool value, file.GetBool(full));
  (vocabulary->*set)(value);
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const model::GgufFile& file, v1::Vocabulary* vocabulary) {
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view model, file.GetString("tokenizer.ggml.model"));
  vocabulary->set_model(std::string(model));
  if (file.Has("tokenizer.ggml.pre")) {
    SHOAL_ASSIGN_OR_RETURN(const absl::string_view pre, file.GetString("tokenizer.ggml.pre"));
    vocabulary->set_pre(std::string(pre));
  }
  SHOAL_ASSIGN_OR_RETURN(const auto tokens, file.GetStringArray("tokenizer.ggml.tokens"));
  for (absl::string_view token : tokens) vocabulary->add_tokens(token.data(), token.size());
  if (file.Has("tokenizer.ggml.scores")) {
    SHOAL_ASSIGN_OR_RETURN(const auto scores, file.GetF32Array("tokenizer.ggml.scores"));
    vocabulary->mutable_scores()->Add(scores.begin(), scores.end());
  }
  if (file.Has("tokenizer.ggml.token_type")) {
    SHOAL_ASSIGN_OR_RETURN(const auto types, file.GetI32Array("tokenizer.ggml.token_type"));
    vocabulary->mutable_types()->Add(types.begin(), types.end());
  }
  if (file.Has("tokenizer.ggml.merges")) {
    SHOAL_ASSIGN_OR_RETURN(const auto merges, file.GetStringArray("tokenizer.ggml.merges"));
    for (absl::string_view merge : merges) vocabulary->add_merges(merge.data(), merge.size());
  }
  using Setter = void (v1::Vocabulary::*)(int32_t);
  const std::vector<std::pair<absl::string_view, Setter>> ids = {
      {"bos_token_id", &v1::Vocabulary::set_bos_id},
      {"eos_token_id", &v1::Vocabulary::set_eos_id},
      {"eot_token_id", &v1::Vocabulary::set_eot_id},
      {"eom_token_id", &v1::Vocabulary::set_eom_id},
      {"unknown_token_id", &v1::Vocabulary::set_unk_id},
      {"padding_token_id", &v1::Vocabulary::set_pad_id}};
  for (const auto& [key, set] : ids) {
    int32_t id = -1;
    SHOAL_RETURN_IF_ERROR(ReadId(file, key, &id));
    (vocabulary->*set)(id);
  }
  SHOAL_RETURN_IF_ERROR(ReadFlag(file, "add_bos_token", &v1::Vocabulary::set_add_bos, vocabulary));
  SHOAL_RETURN_IF_ERROR(ReadFlag(file, "add_eos_token", &v1::Vocabulary::set_add_eos, vocabulary));
  return ReadFlag(file, "add_space_prefix", &v1::Vocabulary::set_add_space_prefix, vocabulary);
}

// The type that holds most of the weights' bytes.
std::string MainType(const model::GgufFile& file) {
  std::map<kernels::DType, uint64_t> bytes;
  for (const model::TensorInfo& tensor : file.tensors()) bytes[tensor.dtype] += tensor.num_bytes;
  kernels::DType best{};
  uint64_t most = 0;
  for (const auto& [type, size] : bytes) {
    if (size > most) best = type, most = size;
  }
  return std::string(kernels::TraitsOf(best).name);
}

}  // namespace

absl::StatusOr<v1::ModelDescription> DescribeModel(const model::GgufFile& file) {
  v1::ModelDescription description;
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view architecture,
                         file.GetString("general.architecture"));
  description.set_architecture(std::string(architecture));
  if (file.Has("general.name")) {
    SHOAL_ASSIGN_OR_RETURN(const absl::string_view name, file.GetString("general.name"));
    description.set_name(std::string(name));
  }
  description.set_quantization(MainType(file));
  SHOAL_ASSIGN_OR_RETURN(const uint64_t context,
                         file.GetU64(absl::StrCat(architecture, ".context_length")));
  description.set_context_length(static_cast<uint32_t>(context));
  description.set_fingerprint(file.Fingerprint());
  SHOAL_RETURN_IF_ERROR(ReadVocabulary(file, description.mutable_vocabulary()));
  description.set_vocab_size(description.vocabulary().tokens_size());
  if (file.Has("tokenizer.chat_template")) {
    SHOAL_ASSIGN_OR_RETURN(const absl::string_view source,
                           file.GetString("tokenizer.chat_template"));
    description.set_chat_template(std::string(source));
  }
  return description;
}

}  // namespace shoal::worker
