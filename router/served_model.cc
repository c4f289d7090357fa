#include "router/served_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "shoal/worker/v1/worker.pb.h"

namespace shoal::router {
namespace {

text::Vocabulary FromProto(const worker::v1::Vocabulary& proto) {
  text::Vocabulary vocabulary;
  vocabulary.model = proto.model();
  vocabulary.pre = proto.pre();
  vocabulary.tokens.assign(proto.tokens().begin(), proto.tokens().end());
  vocabulary.scores.assign(proto.scores().begin(), proto.scores().end());
  vocabulary.types.assign(proto.types().begin(), proto.types().end());
  vocabulary.merges.assign(proto.merges().begin(), proto.merges().end());
  vocabulary.bos_id = proto.bos_id();
  vocabulary.eos_id = proto.eos_id();
  vocabulary.eot_id = proto.eot_id();
  vocabulary.eom_id = proto.eom_id();
  vocabulary.unk_id = proto.unk_id();
  vocabulary.pad_id = proto.pad_id();
  if (proto.has_add_bos()) vocabulary.add_bos = proto.add_bos();
  if (proto.has_add_eos()) vocabulary.add_eos = proto.add_eos();
  if (proto.has_add_space_prefix()) vocabulary.add_space_prefix = proto.add_space_prefix();
  return vocabulary;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ServedModel>> MakeServedModel(
    const worker::v1::ModelDescription& description, const ServingFacts& facts) {
  if (facts.max_seq_len < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the group holds sequences of ", facts.max_seq_len,
                     " tokens, it takes 2 for a prompt and an answer: give it more KV cache, or a "
                     "larger max_seq_len"));
  }
  auto model = std::make_shared<ServedModel>();
  model->name = facts.name.empty() ? description.name() : facts.name;
  if (model->name.empty()) model->name = description.architecture();
  model->architecture = description.architecture();
  model->quantization = description.quantization();
  model->fingerprint = description.fingerprint();
  model->numerics_id = facts.numerics_id;
  model->load_time = facts.load_time;
  model->max_seq_len = facts.max_seq_len;
  SHOAL_ASSIGN_OR_RETURN(model->tokenizer,
                         text::Tokenizer::Create(FromProto(description.vocabulary())));
  const text::Tokenizer& tokenizer = *model->tokenizer;
  model->vocab_size = tokenizer.vocab_size();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsEndOfGeneration(id)) model->eos_ids.push_back(id);
    model->max_token_bytes = std::max<uint32_t>(
        model->max_token_bytes, static_cast<uint32_t>(tokenizer.TokenBytes(id).size()));
  }
  if (!description.chat_template().empty()) {
    const auto text_of = [&tokenizer](int32_t id) {
      return id < 0 ? std::string() : tokenizer.TokenBytes(id);
    };
    SHOAL_ASSIGN_OR_RETURN(
        model->chat_template,
        text::ChatTemplate::Parse(description.chat_template(), text_of(tokenizer.bos_id()),
                                  text_of(tokenizer.eos_id())));
  }
  return model;
}

}  // namespace shoal::router
