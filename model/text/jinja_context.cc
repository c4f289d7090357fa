#include "model/text/jinja_context.h"

#include "absl/strings/str_cat.h"

namespace shoal::text::jinja {
namespace {

absl::Status LimitError(absl::string_view what, absl::string_view option, size_t limit) {
  return absl::InvalidArgumentError(absl::StrCat("the template ", what, " (limit ", option, " = ",
                                                 limit,
                                                 "); shorten the conversation or fix the "
                                                 "model's chat template"));
}

}  // namespace

void Scope::Set(absl::string_view name, const Value& value) {
  for (NamedValue& variable : variables) {
    if (variable.first == name) {
      variable.second = value;
      return;
    }
  }
  variables.emplace_back(name, value);
}

void Scope::Capture() {
  for (Scope* scope = this; scope != nullptr && !scope->is_captured; scope = scope->parent) {
    scope->is_captured = true;
  }
}

absl::Status Context::Step() {
  ++num_steps_;
  if (num_steps_ > limits_.max_steps) {
    return LimitError("takes too many steps", "max_steps", limits_.max_steps);
  }
  if (num_bytes_ > limits_.max_memory_bytes) {
    return LimitError("uses too much memory", "max_memory_bytes", limits_.max_memory_bytes);
  }
  return absl::OkStatus();
}

absl::Status Context::Reserve(size_t string_bytes) const {
  if (num_bytes_ + string_bytes > limits_.max_memory_bytes) {
    return LimitError("uses too much memory", "max_memory_bytes", limits_.max_memory_bytes);
  }
  return CheckOutput(string_bytes);
}

absl::Status Context::CheckOutput(size_t bytes) const {
  if (bytes > limits_.max_output_bytes) {
    return LimitError("makes too long a text", "max_output_bytes", limits_.max_output_bytes);
  }
  return absl::OkStatus();
}

Value Context::NewString(MarkedString value) {
  Charge(value.MemoryBytes());
  Work(value.size());
  strings_.push_back(std::move(value));
  return Value::String(&strings_.back());
}

Value Context::NewUserString(absl::string_view bytes) {
  return NewString(MarkedString(bytes, Origin::kUser));
}

const std::vector<Value>* Context::NewItems(std::vector<Value> items) {
  Charge(sizeof(items) + items.size() * sizeof(Value));
  Work(items.size() * sizeof(Value));
  items_.push_back(std::move(items));
  return &items_.back();
}

Value Context::NewList(std::vector<Value> items) { return Value::List(NewItems(std::move(items))); }

Value Context::NewTuple(std::vector<Value> items) {
  return Value::Tuple(NewItems(std::move(items)));
}

Value Context::NewDict(Dict dict) {
  Charge(dict.MemoryBytes());
  dicts_.push_back(std::move(dict));
  return Value::FromDict(&dicts_.back());
}

Value Context::NewNamespace(Dict attributes) {
  Charge(attributes.MemoryBytes());
  namespaces_.push_back({std::move(attributes)});
  return Value::FromNamespace(&namespaces_.back());
}

Value Context::NewLoop(Loop loop) {
  Charge(sizeof(loop));
  loops_.push_back(std::move(loop));
  return Value::FromLoop(&loops_.back());
}

Value Context::NewFunction(const Function& function) {
  Charge(sizeof(function));
  functions_.push_back(function);
  return Value::FromFunction(&functions_.back());
}

Value Context::NewUndefined(std::string why) {
  const Value message = NewString(MarkedString(why, Origin::kUser));
  return Value::Undefined(&message.AsString());
}

Scope* Context::NewScope(Scope* parent) {
  Charge(sizeof(Scope) + 4 * sizeof(NamedValue));
  Scope& scope = scopes_.emplace_back();
  scope.parent = parent;
  return &scope;
}

absl::Status Context::Raise(absl::string_view message) {
  raised_ = true;
  return absl::InvalidArgumentError(message);
}

absl::Status Nesting::Check() const {
  const int limit = context_.limits_.max_depth;
  if (context_.depth_ > limit) {
    return LimitError("nests too deeply", "max_depth", limit);
  }
  return context_.Step();
}

}  // namespace shoal::text::jinja
