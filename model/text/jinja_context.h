#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/text/jinja_limits.h"
#include "model/text/jinja_native.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

struct Stmt;

// The variables of a block; names point into the parsed template.
struct Scope {
  Scope* parent = nullptr;
  bool is_captured = false;  // a macro defined in it, or in a scope inside of it, may outlive it
  std::vector<NamedValue> variables;

  void Set(absl::string_view name, const Value& value);
  void Capture();
};

// Something that can be called: a macro with the scope it was defined in, or a native with the
// object it is a method of.
struct Function {
  const Stmt* macro = nullptr;
  Scope* scope = nullptr;
  const Native* native = nullptr;
  Value self;
};

// One rendering: owns every value made in it and counts what it uses. Values are freed together at
// the end, so sharing and cycles cost nothing. Belongs to one thread.
//
// The counters are sticky: Work and New... never fail, and the next Step does once one is over its
// limit. So a loop that makes values calls Step for each turn, and what makes many bytes at once
// asks Reserve first.
class Context {
 public:
  Context(const TemplateLimits& limits, absl::Time now) : limits_(limits), now_(now) {}

  const TemplateLimits& limits() const { return limits_; }
  absl::Time now() const { return now_; }

  // INVALID_ARGUMENT if a limit is exceeded.
  absl::Status Step();
  void Work(size_t bytes) { num_steps_ += bytes / kBytesPerStep; }
  void Charge(size_t bytes) { num_bytes_ += bytes; }
  absl::Status Reserve(size_t string_bytes) const;
  absl::Status CheckOutput(size_t bytes) const;

  Value NewString(MarkedString value);
  Value NewUserString(absl::string_view bytes);
  Value NewList(std::vector<Value> items);
  Value NewTuple(std::vector<Value> items);
  Value NewDict(Dict dict);
  Value NewNamespace(Dict attributes);
  Value NewLoop(Loop loop);
  Value NewFunction(const Function& function);
  Value NewUndefined(std::string why);
  Scope* NewScope(Scope* parent);

  // The error of raise_exception(message).
  absl::Status Raise(absl::string_view message);
  bool raised() const { return raised_; }

 private:
  friend class Nesting;
  static constexpr size_t kBytesPerStep = 256;

  const std::vector<Value>* NewItems(std::vector<Value> items);

  const TemplateLimits limits_;
  const absl::Time now_;
  int64_t num_steps_ = 0;
  size_t num_bytes_ = 0;
  int depth_ = 0;
  bool raised_ = false;

  std::deque<MarkedString> strings_;
  std::deque<std::vector<Value>> items_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
  std::deque<Function> functions_;
  std::deque<Scope> scopes_;
};

// Counts one level of recursion while it lives.
//   Nesting nesting(context);
//   SHOAL_RETURN_IF_ERROR(nesting.Check());
class Nesting {
 public:
  explicit Nesting(Context& context) : context_(context) { ++context_.depth_; }
  ~Nesting() { --context_.depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

  // INVALID_ARGUMENT if deeper than max_depth; counts as a step.
  absl::Status Check() const;

 private:
  Context& context_;
};

}  // namespace shoal::text::jinja
