#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

Value Value::Bool(bool v) {
  Value value(Kind::kBool);
  value.bool_ = v;
  return value;
}

Value Value::Int(int64_t v) {
  Value value(Kind::kInt);
  value.int_ = v;
  return value;
}

Value Value::Float(double v) {
  Value value(Kind::kFloat);
  value.float_ = v;
  return value;
}

Value Value::String(const MarkedString* v) {
  Value value(Kind::kString);
  value.string_ = v;
  return value;
}

Value Value::List(const std::vector<Value>* v) {
  Value value(Kind::kList);
  value.items_ = v;
  return value;
}

Value Value::Tuple(const std::vector<Value>* v) {
  Value value(Kind::kTuple);
  value.items_ = v;
  return value;
}

Value Value::FromDict(const Dict* v) {
  Value value(Kind::kDict);
  value.dict_ = v;
  return value;
}

Value Value::FromNamespace(Namespace* v) {
  Value value(Kind::kNamespace);
  value.namespace_ = v;
  return value;
}

Value Value::FromLoop(Loop* v) {
  Value value(Kind::kLoop);
  value.loop_ = v;
  return value;
}

Value Value::FromFunction(const Function* v) {
  Value value(Kind::kFunction);
  value.function_ = v;
  return value;
}

Value Value::Undefined(const MarkedString* why) {
  Value value;
  value.string_ = why;
  return value;
}

std::string Value::WhyUndefined() const {
  return string_ == nullptr ? "a value is undefined" : std::string(string_->bytes());
}

bool Value::IsTrue() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return bool_;
    case Kind::kInt:
      return int_ != 0;
    case Kind::kFloat:
      return float_ != 0;
    case Kind::kString:
      return !string_->empty();
    case Kind::kList:
    case Kind::kTuple:
      return !items_->empty();
    case Kind::kDict:
      return dict_->size() > 0;
    case Kind::kNamespace:
    case Kind::kLoop:
    case Kind::kFunction:
      return true;
  }
  return false;
}

bool Value::IsSameAs(const Value& other) const {
  if (kind_ != other.kind_) {
    return false;
  }
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return bool_ == other.bool_;
    case Kind::kInt:
      return int_ == other.int_;
    case Kind::kFloat:
      return float_ == other.float_;
    default:
      return string_ == other.string_;
  }
}

absl::string_view Value::TypeName() const {
  constexpr absl::string_view kNames[] = {"undefined",        "None",         "bool object",
                                          "int object",       "float object", "str object",
                                          "list object",      "tuple object", "dict object",
                                          "namespace object", "loop object",  "function"};
  return kNames[static_cast<size_t>(kind_)];
}

size_t Dict::FindIndex(absl::string_view key) const {
  if (!index_.empty()) {
    auto found = index_.find(key);
    return found == index_.end() ? size() : found->second;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].first.is_string() && entries_[i].first.bytes() == key) {
      return i;
    }
  }
  return size();
}

const Value* Dict::Find(absl::string_view key) const {
  const size_t i = FindIndex(key);
  return i == size() ? nullptr : &entries_[i].second;
}

void Dict::Set(const Value& key, const Value& value) {
  const size_t i = FindIndex(key.bytes());
  if (i < size()) {
    entries_[i].second = value;
    return;
  }
  entries_.emplace_back(key, value);
  if (!index_.empty()) {
    index_.emplace(key.bytes(), i);
  } else if (entries_.size() == kMinIndexed) {
    for (size_t j = 0; j < entries_.size(); ++j) {
      if (entries_[j].first.is_string()) {
        index_.emplace(entries_[j].first.bytes(), j);
      }
    }
  }
}

}  // namespace shoal::text::jinja
