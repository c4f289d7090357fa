#include "model/text/jinja_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "model/text/jinja_print.h"
#include "model/text/jinja_unicode.h"

namespace shoal::text::jinja {
namespace {

// Builds values straight from the parser's events: nlohmann's ordered_json finds keys by linear
// search, which a client could make quadratic.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit ValueBuilder(Context& context) : context_(context) {}

  bool null() override { return Put(Value::None()); }
  bool boolean(bool v) override { return Put(Value::Bool(v)); }
  bool number_integer(number_integer_t v) override { return Put(Value::Int(v)); }
  bool number_unsigned(number_unsigned_t v) override {
    return v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? Put(Value::Float(static_cast<double>(v)))
               : Put(Value::Int(static_cast<int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t& /*text*/) override {
    return Put(Value::Float(v));
  }
  bool string(string_t& v) override { return Put(context_.NewUserString(v)); }
  bool binary(binary_t& /*v*/) override { return false; }
  bool key(string_t& v) override {
    open_.back().key = context_.NewUserString(v);
    return true;
  }
  bool start_object(size_t /*size*/) override { return Open(true); }
  bool start_array(size_t /*size*/) override { return Open(false); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    status_ = absl::InvalidArgumentError(absl::StrCat("not valid JSON at byte ", position));
    return false;
  }

  const absl::Status& status() const { return status_; }
  const Value& value() const { return value_; }

 private:
  struct Container {
    bool is_object;
    Value key;
    Dict dict;
    std::vector<Value> items;
  };

  bool Open(bool is_object) {
    if (open_.size() >= static_cast<size_t>(context_.limits().max_depth)) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          "JSON is nested too deeply (limit max_depth = ", context_.limits().max_depth, ")"));
      return false;
    }
    open_.push_back({is_object, Value(), {}, {}});
    return true;
  }

  bool Close() {
    Container container = std::move(open_.back());
    open_.pop_back();
    return Put(container.is_object ? context_.NewDict(std::move(container.dict))
                                   : context_.NewList(std::move(container.items)));
  }

  bool Put(const Value& value) {
    status_ = context_.Step();
    if (!status_.ok()) {
      return false;
    }
    if (open_.empty()) {
      value_ = value;
    } else if (open_.back().is_object) {
      open_.back().dict.Set(open_.back().key, value);
    } else {
      open_.back().items.push_back(value);
    }
    return true;
  }

  Context& context_;
  std::vector<Container> open_;
  Value value_;
  absl::Status status_;
};

void AppendJsonString(absl::string_view s, bool ensure_ascii, std::string* out) {
  out->push_back('"');
  for (size_t pos = 0; pos < s.size();) {
    const char32_t c = DecodeCodePoint(s, &pos);
    constexpr absl::string_view kEscaped = "\"\\\n\r\t\f\b";
    constexpr absl::string_view kLetters = "\"\\nrtfb";
    const size_t simple = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : absl::string_view::npos;
    if (simple != absl::string_view::npos) {
      out->push_back('\\');
      out->push_back(kLetters[simple]);
    } else if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned>(c));
    } else if (ensure_ascii && c >= 0x10000) {
      const unsigned v = static_cast<unsigned>(c) - 0x10000;
      absl::StrAppendFormat(out, "\\u%04x\\u%04x", 0xD800 + (v >> 10), 0xDC00 + (v & 0x3FF));
    } else {
      AppendCodePoint(c, out);
    }
  }
  out->push_back('"');
}

class JsonWriter {
 public:
  JsonWriter(Context& context, const JsonStyle& style, std::string* out)
      : context_(context), style_(style), out_(out) {}

  absl::Status Write(const Value& value) {
    Nesting nesting(context_);
    SHOAL_RETURN_IF_ERROR(nesting.Check());
    SHOAL_RETURN_IF_ERROR(WriteUnchecked(value));
    return context_.CheckOutput(out_->size());
  }

 private:
  absl::Status WriteUnchecked(const Value& value);
  absl::Status WriteItems(absl::Span<const Value> items);
  absl::Status WriteDict(const Dict& dict);
  absl::Status WriteKey(const Value& key);
  absl::Status NewLine();
  void WriteFloat(double value);

  Context& context_;
  const JsonStyle& style_;
  std::string* const out_;
  size_t level_ = 0;
};

void JsonWriter::WriteFloat(double value) {
  if (std::isnan(value)) {
    out_->append("NaN");
  } else if (std::isinf(value)) {
    out_->append(value < 0 ? "-Infinity" : "Infinity");
  } else {
    out_->append(FormatFloat(value));
  }
}

absl::Status JsonWriter::WriteUnchecked(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      out_->append("null");
      return absl::OkStatus();
    case Kind::kBool:
      out_->append(value.AsBool() ? "true" : "false");
      return absl::OkStatus();
    case Kind::kInt:
      absl::StrAppend(out_, value.AsInt());
      return absl::OkStatus();
    case Kind::kFloat:
      WriteFloat(value.AsDouble());
      return absl::OkStatus();
    case Kind::kString:
      SHOAL_RETURN_IF_ERROR(context_.Reserve(out_->size() + value.bytes().size()));
      AppendJsonString(value.bytes(), style_.ensure_ascii, out_);
      return absl::OkStatus();
    case Kind::kList:
    case Kind::kTuple:
      return WriteItems(value.items());
    case Kind::kDict:
      return WriteDict(value.AsDict());
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("tojson cannot write ", value.TypeName(), " as JSON"));
  }
}

absl::Status JsonWriter::NewLine() {
  if (!style_.pretty) {
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(context_.Reserve(out_->size() + 1 + level_ * style_.indent.size()));
  out_->push_back('\n');
  for (size_t i = 0; i < level_; ++i) {
    out_->append(style_.indent);
  }
  return absl::OkStatus();
}

absl::Status JsonWriter::WriteItems(absl::Span<const Value> items) {
  out_->push_back('[');
  ++level_;
  for (size_t i = 0; i < items.size(); ++i) {
    out_->append(i == 0 ? "" : style_.item_separator);
    SHOAL_RETURN_IF_ERROR(NewLine());
    SHOAL_RETURN_IF_ERROR(Write(items[i]));
  }
  --level_;
  if (!items.empty()) {
    SHOAL_RETURN_IF_ERROR(NewLine());
  }
  out_->push_back(']');
  return absl::OkStatus();
}

absl::Status JsonWriter::WriteDict(const Dict& dict) {
  std::vector<const Dict::Entry*> entries;
  bool all_strings = true;
  for (const Dict::Entry& entry : dict.entries()) {
    entries.push_back(&entry);
    all_strings = all_strings && entry.first.is_string();
  }
  if (style_.sort_keys) {
    if (!all_strings) {
      return absl::InvalidArgumentError("tojson(sort_keys=true) needs keys that are all strings");
    }
    std::sort(entries.begin(), entries.end(), [](const Dict::Entry* a, const Dict::Entry* b) {
      return a->first.bytes() < b->first.bytes();
    });
  }
  out_->push_back('{');
  ++level_;
  for (size_t i = 0; i < entries.size(); ++i) {
    out_->append(i == 0 ? "" : style_.item_separator);
    SHOAL_RETURN_IF_ERROR(NewLine());
    SHOAL_RETURN_IF_ERROR(WriteKey(entries[i]->first));
    out_->append(style_.key_separator);
    SHOAL_RETURN_IF_ERROR(Write(entries[i]->second));
  }
  --level_;
  if (!entries.empty()) {
    SHOAL_RETURN_IF_ERROR(NewLine());
  }
  out_->push_back('}');
  return absl::OkStatus();
}

absl::Status JsonWriter::WriteKey(const Value& key) {
  if (key.is_string()) {
    return Write(key);
  }
  if (!key.is_number() && !key.is(Kind::kNone)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tojson cannot write ", key.TypeName(), " as a key of a JSON object"));
  }
  out_->push_back('"');
  SHOAL_RETURN_IF_ERROR(Write(key));
  out_->push_back('"');
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Value> ParseJson(Context& context, absl::string_view text) {
  ValueBuilder builder(context);
  const bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  if (!ok) {
    return builder.status().ok() ? absl::InvalidArgumentError("not valid JSON") : builder.status();
  }
  return builder.value();
}

absl::Status AppendJson(Context& context, const Value& value, const JsonStyle& style,
                        std::string* out) {
  return JsonWriter(context, style, out).Write(value);
}

}  // namespace shoal::text::jinja
