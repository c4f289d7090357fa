#include "model/config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace shoal::model {
namespace {

constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 512;

struct ArchitectureInfo {
  Architecture architecture;
  absl::string_view name;
  kernels::RopeStyle rope_style;
  bool qkv_bias;  // always there; elsewhere only if the file has it
  bool qk_norm;
};
constexpr ArchitectureInfo kArchitectures[] = {
    {Architecture::kLlama, "llama", kernels::RopeStyle::kAdjacent, false, false},
    {Architecture::kQwen2, "qwen2", kernels::RopeStyle::kHalves, true, false},
    {Architecture::kQwen3, "qwen3", kernels::RopeStyle::kHalves, false, true},
};

// Reads the keys of one file under its architecture's prefix.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, absl::string_view prefix) : file_(file), prefix_(prefix) {}

  const GgufFile& file() const { return file_; }
  std::string Key(absl::string_view suffix) const { return absl::StrCat(prefix_, ".", suffix); }
  bool Has(absl::string_view suffix) const { return file_.Has(Key(suffix)); }

  absl::StatusOr<int64_t> Dimension(absl::string_view suffix, int64_t max) const {
    SHOAL_ASSIGN_OR_RETURN(const uint64_t value, file_.GetU64(Key(suffix)));
    return Checked(suffix, value, max);
  }

  absl::StatusOr<int64_t> DimensionOr(absl::string_view suffix, int64_t fallback,
                                      int64_t max) const {
    if (!Has(suffix)) {
      return fallback;
    }
    return Dimension(suffix, max);
  }

  // A number, or an array that has the same number for every layer.
  absl::StatusOr<int64_t> UniformDimension(absl::string_view suffix, int64_t num_layers,
                                           int64_t max) const {
    const GgufMetadata* entry = file_.FindMetadata(Key(suffix));
    if (entry == nullptr || entry->type != GgufType::kArray) {
      return Dimension(suffix, max);
    }
    SHOAL_ASSIGN_OR_RETURN(const std::vector<uint32_t> values, file_.GetU32Array(Key(suffix)));
    if (static_cast<int64_t>(values.size()) != num_layers) {
      return Invalid(suffix, absl::StrCat("has ", values.size(), " values for ", num_layers,
                                          " layers; expected one for each"));
    }
    if (!std::all_of(values.begin(), values.end(), [&](uint32_t v) { return v == values[0]; })) {
      return Unserved(suffix, "differs between layers; only models with equal layers are served");
    }
    return Checked(suffix, values[0], max);
  }

  absl::Status Invalid(absl::string_view suffix, absl::string_view problem) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.name(), ": ", Key(suffix), " ", problem));
  }

  absl::Status Unserved(absl::string_view suffix, absl::string_view problem) const {
    return absl::UnimplementedError(absl::StrCat(file_.name(), ": ", Key(suffix), " ", problem));
  }

 private:
  absl::StatusOr<int64_t> Checked(absl::string_view suffix, uint64_t value, int64_t max) const {
    if (value < 1 || value > static_cast<uint64_t>(max)) {
      return Invalid(suffix, absl::StrCat("is ", value, "; expected 1..", max));
    }
    return static_cast<int64_t>(value);
  }

  const GgufFile& file_;
  absl::string_view prefix_;
};

absl::StatusOr<ArchitectureInfo> FindArchitecture(const GgufFile& file) {
  SHOAL_ASSIGN_OR_RETURN(const absl::string_view name, file.GetString("general.architecture"));
  for (const ArchitectureInfo& info : kArchitectures) {
    if (info.name == name) {
      return info;
    }
  }
  const std::string served = absl::StrJoin(
      kArchitectures, ", ",
      [](std::string* out, const ArchitectureInfo& info) { absl::StrAppend(out, info.name); });
  return absl::UnimplementedError(absl::StrCat(file.name(), ": architecture ", Quoted(name),
                                               " is not served; served are: ", served));
}

// Metadata that would change the maths in ways the builders do not write down.
absl::Status RefuseUnservedVariants(const ConfigReader& reader, int64_t context_length) {
  for (absl::string_view suffix : {"expert_count", "expert_used_count"}) {
    SHOAL_ASSIGN_OR_RETURN(const uint64_t experts, reader.file().GetU64Or(reader.Key(suffix), 0));
    if (experts > 0) {
      return reader.Unserved(suffix,
                             absl::StrCat("is ", experts, "; mixtures of experts are not served"));
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const uint64_t window,
                         reader.file().GetU64Or(reader.Key("attention.sliding_window"), 0));
  if (window > 0 && window < static_cast<uint64_t>(context_length)) {
    return reader.Unserved("attention.sliding_window",
                           absl::StrCat("is ", window, ", less than the context of ",
                                        context_length, "; sliding windows are not served"));
  }
  for (absl::string_view suffix :
       {"attn_logit_softcapping", "final_logit_softcapping", "attention.scale", "logit_scale",
        "residual_scale", "embedding_scale", "attention.clamp_kqv"}) {
    SHOAL_ASSIGN_OR_RETURN(const float value, reader.file().GetF32Or(reader.Key(suffix), 0));
    if (value != 0) {
      return reader.Unserved(suffix, absl::StrCat("is ", value, "; it is not served"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RopeConfig> ParseRope(const ConfigReader& reader, const ArchitectureInfo& info,
                                     int64_t head_dim) {
  RopeConfig rope;
  rope.style = info.rope_style;
  rope.has_freq_factors = reader.file().FindTensor("rope_freqs.weight") != nullptr;
  SHOAL_ASSIGN_OR_RETURN(rope.dim,
                         reader.DimensionOr("rope.dimension_count", head_dim, kMaxHeadDim));
  if (rope.dim > head_dim || rope.dim % 2 != 0) {
    return reader.Invalid("rope.dimension_count",
                          absl::StrCat("is ", rope.dim,
                                       "; expected an even number up to the head "
                                       "size of ",
                                       head_dim));
  }
  SHOAL_ASSIGN_OR_RETURN(const float base,
                         reader.file().GetF32Or(reader.Key("rope.freq_base"), 10000));
  if (!(base > 0)) {
    return reader.Invalid("rope.freq_base", absl::StrCat("is ", base, "; expected more than 0"));
  }
  rope.base = base;

  absl::string_view type = "none";
  if (reader.Has("rope.scaling.type")) {
    SHOAL_ASSIGN_OR_RETURN(type, reader.file().GetString(reader.Key("rope.scaling.type")));
  }
  if (type == "linear") {
    SHOAL_ASSIGN_OR_RETURN(rope.linear_factor,
                           reader.file().GetF32(reader.Key("rope.scaling.factor")));
    if (!(rope.linear_factor > 0)) {
      return reader.Invalid("rope.scaling.factor",
                            absl::StrCat("is ", rope.linear_factor, "; expected more than 0"));
    }
    if (rope.has_freq_factors) {
      return reader.Unserved("rope.scaling.type",
                             "is linear beside rope_freqs.weight; one of them is served");
    }
  } else if (type != "none") {
    return reader.Unserved("rope.scaling.type",
                           absl::StrCat("is ", Quoted(type),
                                        "; served are none, linear, and factors in "
                                        "rope_freqs.weight"));
  }
  return rope;
}

absl::Status ParseAttention(const ConfigReader& reader, ModelConfig* config) {
  SHOAL_ASSIGN_OR_RETURN(config->num_heads, reader.UniformDimension("attention.head_count",
                                                                    config->num_layers, kMaxHeads));
  config->num_kv_heads = config->num_heads;
  if (reader.Has("attention.head_count_kv")) {
    SHOAL_ASSIGN_OR_RETURN(
        config->num_kv_heads,
        reader.UniformDimension("attention.head_count_kv", config->num_layers, kMaxHeads));
  }
  if (config->num_heads % config->num_kv_heads != 0) {
    return reader.Invalid("attention.head_count_kv",
                          absl::StrCat("is ", config->num_kv_heads, ", which does not divide the ",
                                       config->num_heads, " query heads"));
  }
  if (reader.Has("attention.key_length")) {
    SHOAL_ASSIGN_OR_RETURN(config->head_dim, reader.Dimension("attention.key_length", kMaxHeadDim));
  } else if (config->hidden % config->num_heads != 0) {
    return reader.Invalid(
        "attention.head_count",
        absl::StrCat("is ", config->num_heads, ", which does not divide the ", "embedding length ",
                     config->hidden, ", and attention.key_length is not given"));
  } else {
    config->head_dim = config->hidden / config->num_heads;
  }
  if (config->head_dim > kMaxHeadDim) {
    return reader.Invalid("attention.head_count",
                          absl::StrCat("gives heads of ", config->head_dim, " columns; at most ",
                                       kMaxHeadDim, " are served"));
  }
  SHOAL_ASSIGN_OR_RETURN(
      const int64_t value_length,
      reader.DimensionOr("attention.value_length", config->head_dim, kMaxHeadDim));
  if (value_length != config->head_dim) {
    return reader.Unserved("attention.value_length",
                           absl::StrCat("is ", value_length, ", not the key length ",
                                        config->head_dim, "; they must be equal"));
  }
  return absl::OkStatus();
}

// The vocabulary is what the tokenizer knows, or without one what the embedding table holds. The
// table may have more rows: such pads are neither looked up nor drawn, as no client could read or
// send them. Fewer are refused, and a vocab_size key that contradicts the table.
absl::Status ParseVocabulary(const ConfigReader& reader, ModelConfig* config) {
  SHOAL_ASSIGN_OR_RETURN(const TensorInfo* embedding,
                         reader.file().RequireTensor("token_embd.weight"));
  const int64_t rows = embedding->rows();
  if (rows > ModelConfig::kMaxDimension) {
    return absl::InvalidArgumentError(absl::StrCat(reader.file().name(), ": token_embd.weight has ",
                                                   rows, " rows; at most ",
                                                   ModelConfig::kMaxDimension, " are served"));
  }
  config->vocab = rows;
  const GgufMetadata* tokens = reader.file().FindMetadata("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->type == GgufType::kArray) {
    if (tokens->count < 1 || tokens->count > static_cast<uint64_t>(rows)) {
      return absl::InvalidArgumentError(
          absl::StrCat(reader.file().name(), ": tokenizer.ggml.tokens has ", tokens->count,
                       " tokens and token_embd.weight ", rows,
                       " rows; there must be a token, and a row for each; convert the model anew"));
    }
    config->vocab = static_cast<int64_t>(tokens->count);
  }
  if (!reader.Has("vocab_size")) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const int64_t size,
                         reader.Dimension("vocab_size", ModelConfig::kMaxDimension));
  if (size != rows) {
    return reader.Invalid("vocab_size",
                          absl::StrCat("is ", size, " but token_embd.weight has ", rows, " rows"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view ArchitectureName(Architecture architecture) {
  for (const ArchitectureInfo& info : kArchitectures) {
    if (info.architecture == architecture) {
      return info.name;
    }
  }
  return "unknown";
}

absl::StatusOr<ModelConfig> ParseConfig(const GgufFile& file) {
  SHOAL_ASSIGN_OR_RETURN(const ArchitectureInfo info, FindArchitecture(file));
  const ConfigReader reader(file, info.name);
  ModelConfig config;
  config.architecture = info.architecture;
  if (file.Has("general.name")) {
    SHOAL_ASSIGN_OR_RETURN(const absl::string_view name, file.GetString("general.name"));
    config.name = std::string(name);
  }
  constexpr int64_t kMax = ModelConfig::kMaxDimension;
  SHOAL_ASSIGN_OR_RETURN(config.num_layers, reader.Dimension("block_count", kMaxLayers));
  SHOAL_ASSIGN_OR_RETURN(config.hidden, reader.Dimension("embedding_length", kMax));
  SHOAL_ASSIGN_OR_RETURN(config.ffn,
                         reader.UniformDimension("feed_forward_length", config.num_layers, kMax));
  SHOAL_ASSIGN_OR_RETURN(config.context_length, reader.Dimension("context_length", kMax));
  SHOAL_ASSIGN_OR_RETURN(config.rms_eps,
                         file.GetF32(reader.Key("attention.layer_norm_rms_epsilon")));
  if (!(config.rms_eps > 0 && config.rms_eps < 1)) {
    return reader.Invalid("attention.layer_norm_rms_epsilon",
                          absl::StrCat("is ", config.rms_eps, "; expected 0 < eps < 1"));
  }
  SHOAL_RETURN_IF_ERROR(ParseAttention(reader, &config));
  SHOAL_RETURN_IF_ERROR(ParseVocabulary(reader, &config));
  SHOAL_ASSIGN_OR_RETURN(config.rope, ParseRope(reader, info, config.head_dim));
  SHOAL_RETURN_IF_ERROR(RefuseUnservedVariants(reader, config.context_length));
  config.tied_head = file.FindTensor("output.weight") == nullptr;
  config.qkv_bias = info.qkv_bias || file.FindTensor("blk.0.attn_q.bias") != nullptr;
  config.qk_norm = info.qk_norm;
  return config;
}

}  // namespace shoal::model
