#include "tests/router/test_model.h"

#include "absl/strings/str_format.h"
#include "glog/logging.h"

namespace shoal::router {

const char kChatTemplate[] =
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::vector<uint32_t> ByteTokens(absl::string_view text) {
  std::vector<uint32_t> ids;
  for (const char byte : text) ids.push_back(ByteToken(byte));
  return ids;
}

worker::v1::ModelDescription DescribeTestModel(const TestModelOptions& options) {
  worker::v1::ModelDescription description;
  description.set_name("test-model");
  description.set_architecture("llama");
  description.set_quantization("F32");
  description.set_context_length(options.max_seq_len);
  description.set_vocab_size(kVocabSize);
  description.set_fingerprint(42);
  description.set_chat_template(options.chat_template);
  worker::v1::Vocabulary* vocabulary = description.mutable_vocabulary();
  vocabulary->set_model("llama");
  const auto add = [vocabulary](const std::string& token, int32_t type) {
    vocabulary->add_tokens(token);
    vocabulary->add_scores(0);
    vocabulary->add_types(type);
  };
  add("<unk>", 2);
  add("<s>", 3);
  add("</s>", 3);
  for (int byte = 0; byte < 256; ++byte) add(absl::StrFormat("<0x%02X>", byte), 6);
  add("hello", 1);
  add("\xE2\x96\x81world", 1);
  add("END", 1);
  add("<|im_start|>", 3);
  add("<|im_end|>", 3);
  vocabulary->set_bos_id(kBos);
  vocabulary->set_eos_id(kEos);
  vocabulary->set_eot_id(-1);
  vocabulary->set_eom_id(-1);
  vocabulary->set_unk_id(0);
  vocabulary->set_pad_id(-1);
  vocabulary->set_add_bos(options.add_bos);
  vocabulary->set_add_space_prefix(options.add_space_prefix);
  return description;
}

std::shared_ptr<const ServedModel> MakeTestModel(const TestModelOptions& options) {
  auto model = MakeServedModel(DescribeTestModel(options), {.name = "",
                                                            .numerics_id = "test-numerics",
                                                            .load_time = absl::UnixEpoch(),
                                                            .max_seq_len = options.max_seq_len});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

}  // namespace shoal::router
