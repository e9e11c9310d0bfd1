#include "text/chat_request.h"

#include "text/json_text.h"

namespace deepinfer {
namespace {

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// The member as text, `absent_value` if there is none.
Result<std::string> text_member(const Json& object, const char* key, const std::string& path,
                                std::optional<std::string> absent_value = std::nullopt) {
  const Json* value = find(object, key);
  if (value == nullptr && absent_value) return *std::move(absent_value);
  if (value == nullptr) return invalid_input("{}.{} is missing; give a string", path, key);
  if (!value->is_string()) return invalid_input("{}.{} is {}; give a string", path, key, dump_json(*value));
  return value->get<std::string>();
}

Result<bool> flag_member(const Json& object, const char* key, const std::string& path, bool absent_value) {
  const Json* value = find(object, key);
  if (value == nullptr) return absent_value;
  if (!value->is_boolean()) return invalid_input("{}.{} is {}; give true or false", path, key, dump_json(*value));
  return value->get<bool>();
}

Result<Role> parse_role(const std::string& name, const std::string& path) {
  if (name == "system" || name == "developer") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  if (name == "tool") return Role::kTool;
  if (name == "latest_reminder") return Role::kLatestReminder;
  return invalid_input("{}.role is \"{}\"; use system, developer, user, assistant, tool or latest_reminder", path,
                       name);
}

Result<std::optional<ChatTask>> parse_task(const Json& message, const std::string& path) {
  static constexpr std::pair<std::string_view, ChatTask> kTasks[] = {
      {"action", ChatTask::kAction}, {"query", ChatTask::kQuery}, {"authority", ChatTask::kAuthority},
      {"domain", ChatTask::kDomain}, {"title", ChatTask::kTitle}, {"read_url", ChatTask::kReadUrl}};
  DI_ASSIGN_OR_RETURN(const std::string name, text_member(message, "task", path, ""));
  if (name.empty()) return std::optional<ChatTask>();
  for (const auto& [task_name, task] : kTasks) {
    if (name == task_name) return std::optional(task);
  }
  return invalid_input("{}.task is \"{}\"; use action, query, authority, domain, title or read_url", path, name);
}

// OpenAI nests the address, others put it directly; whatever form it has is kept for the one who fetches images.
std::string image_location(const Json& part) {
  for (const char* key : {"image_url", "image", "url", "source"}) {
    const Json* value = find(part, key);
    if (value == nullptr) continue;
    if (value->is_string()) return value->get<std::string>();
    const Json* url = find(*value, "url");
    return url != nullptr && url->is_string() ? url->get<std::string>() : dump_json(*value);
  }
  return {};
}

Result<ContentPart> parse_content_part(const Json& part, Role role, const std::string& path) {
  DI_ASSIGN_OR_RETURN(const std::string type, text_member(part, "type", path));
  if (type == "image" || type == "image_url") return ContentPart{ContentPart::Kind::kImage, image_location(part)};
  if (type == "text") {
    DI_ASSIGN_OR_RETURN(std::string text, text_member(part, "text", path));
    return ContentPart{ContentPart::Kind::kText, std::move(text)};
  }
  // What a tool returned is shown to the model as far as it goes; what a person sent must not get lost silently.
  if (role == Role::kTool) return ContentPart{ContentPart::Kind::kText, fmt::format("[Unsupported {}]", type)};
  return unsupported("{}.type is \"{}\"; only text, image and image_url are supported", path, type);
}

Status parse_content(const Json& message, const std::string& path, ChatMessage& out) {
  const Json* content = find(message, "content");
  if (content == nullptr) {
    if (out.role == Role::kAssistant) return {};
    return invalid_input("{}.content is missing; give a string or a list of parts", path);
  }
  if (content->is_string()) {
    out.content.push_back({ContentPart::Kind::kText, content->get<std::string>()});
    return {};
  }
  if (!content->is_array()) {
    return invalid_input("{}.content is {}; give a string or a list of parts", path, dump_json(*content));
  }
  for (size_t i = 0; i < content->size(); ++i) {
    DI_ASSIGN_OR_RETURN(ContentPart part,
                        parse_content_part((*content)[i], out.role, fmt::format("{}.content[{}]", path, i)));
    out.content.push_back(std::move(part));
  }
  return {};
}

// Arguments come as JSON inside a string, from some clients twice so, from others as the object itself. Anything that
// is no object becomes one parameter of that name.
std::vector<ToolCall::Parameter> parse_arguments(const Json& arguments) {
  Json parsed = arguments;
  for (int i = 0; i < 2 && parsed.is_string(); ++i) {
    Result<Json> inner = parse_json(parsed.get_ref<const std::string&>());
    if (!inner.ok()) break;
    parsed = std::move(inner).value();
  }
  if (!parsed.is_object()) parsed = Json{{"arguments", arguments}};
  std::vector<ToolCall::Parameter> parameters;
  for (const auto& [name, value] : parsed.get_ref<const Json::object_t&>()) {
    parameters.push_back({name, value.is_string(), value.is_string() ? value.get<std::string>() : dump_json(value)});
  }
  return parameters;
}

Status parse_tool_calls(const Json& message, const std::string& path, ChatMessage& out) {
  const Json* calls = find(message, "tool_calls");
  if (calls == nullptr) return {};
  if (!calls->is_array()) return invalid_input("{}.tool_calls is {}; give a list", path, dump_json(*calls));
  for (size_t i = 0; i < calls->size(); ++i) {
    const Json& value = (*calls)[i];
    const std::string call_path = fmt::format("{}.tool_calls[{}]", path, i);
    const Json* function = find(value, "function");
    if (function == nullptr) return invalid_input("{}.function is missing", call_path);
    const Json* arguments = find(*function, "arguments");
    if (arguments == nullptr) {
      return invalid_input("{}.function.arguments is missing; give a JSON object in a string, \"{{}}\" for none",
                           call_path);
    }
    ToolCall call;
    DI_ASSIGN_OR_RETURN(call.id, text_member(value, "id", call_path, ""));
    DI_ASSIGN_OR_RETURN(call.name, text_member(*function, "name", call_path + ".function"));
    call.parameters = parse_arguments(*arguments);
    out.tool_calls.push_back(std::move(call));
  }
  return {};
}

Status parse_tools(const Json& object, const std::string& path, std::vector<std::string>& tools) {
  const Json* list = find(object, "tools");
  if (list == nullptr) return {};
  if (!list->is_array()) return invalid_input("{}tools is {}; give a list", path, dump_json(*list));
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& tool = (*list)[i];
    const std::string tool_path = fmt::format("{}tools[{}]", path, i);
    DI_ASSIGN_OR_RETURN(const std::string type, text_member(tool, "type", tool_path, "function"));
    if (type != "function") return unsupported("{}.type is \"{}\"; only function is supported", tool_path, type);
    const Json* function = find(tool, "function");
    if (function == nullptr) return invalid_input("{}.function is missing", tool_path);
    DI_RETURN_IF_ERROR(text_member(*function, "name", tool_path + ".function").status());
    tools.push_back(dump_json(*function));
  }
  return {};
}

// The default {"type": "text"} asks for nothing, so the model is not told about it.
Status parse_response_format(const Json& object, const std::string& path, std::string& out) {
  const Json* format = find(object, "response_format");
  if (format == nullptr) return {};
  if (!format->is_object()) return invalid_input("{}response_format is {}; give an object", path, dump_json(*format));
  const Json* type = find(*format, "type");
  if (type == nullptr || *type != "text") out = dump_json(*format);
  return {};
}

Result<ChatMessage> parse_message(const Json& value, const std::string& path) {
  if (!value.is_object()) return invalid_input("{} is {}; give an object", path, dump_json(value));
  ChatMessage message;
  DI_ASSIGN_OR_RETURN(const std::string role, text_member(value, "role", path));
  DI_ASSIGN_OR_RETURN(message.role, parse_role(role, path));
  DI_RETURN_IF_ERROR(parse_content(value, path, message));
  DI_ASSIGN_OR_RETURN(message.task, parse_task(value, path));
  if (message.role == Role::kAssistant) {
    DI_ASSIGN_OR_RETURN(message.reasoning_content, text_member(value, "reasoning_content", path, ""));
    DI_RETURN_IF_ERROR(parse_tool_calls(value, path, message));
    DI_ASSIGN_OR_RETURN(const bool is_prefix, flag_member(value, "prefix", path, false));
    DI_ASSIGN_OR_RETURN(const bool has_no_end, flag_member(value, "wo_eos", path, false));
    message.is_prefix = is_prefix || has_no_end;
  } else if (message.role == Role::kTool) {
    DI_ASSIGN_OR_RETURN(message.tool_call_id, text_member(value, "tool_call_id", path, ""));
  } else if (message.role == Role::kSystem) {
    DI_RETURN_IF_ERROR(parse_tools(value, path + ".", message.tools));
    DI_RETURN_IF_ERROR(parse_response_format(value, path + ".", message.response_format));
  }
  return message;
}

Status parse_thinking(const Json& root, ChatRequest& request) {
  if (const Json* thinking = find(root, "thinking")) {
    DI_ASSIGN_OR_RETURN(const std::string type, text_member(*thinking, "type", "thinking"));
    if (type != "enabled" && type != "disabled") {
      return invalid_input("thinking.type is \"{}\"; use enabled or disabled", type);
    }
    request.is_thinking = type == "enabled";
  }
  const Json* effort = find(root, "reasoning_effort");
  if (effort == nullptr) return {};
  if (effort->is_number_integer() && *effort >= 1 && *effort <= 100) {
    request.reasoning_effort = effort->get<int>();
    return {};
  }
  static constexpr std::pair<std::string_view, int> kEfforts[] = {
      {"low", 50}, {"minimal", 50}, {"high", 75}, {"medium", 75}, {"xhigh", 75}, {"max", 100}, {"ultra", 100}};
  for (const auto& [name, budget] : kEfforts) {
    if (*effort != name) continue;
    request.reasoning_effort = budget;
    return {};
  }
  if (*effort != "none") {
    return invalid_input("reasoning_effort is {}; use none, low, high, max or a number from 1 to 100",
                         dump_json(*effort));
  }
  request.is_thinking = false;
  return {};
}

Status parse_tool_choice(const Json& root, ChatRequest& request) {
  const Json* choice = find(root, "tool_choice");
  if (choice == nullptr || *choice == "auto") return {};
  if (*choice == "none") {
    request.tool_choice = ToolChoice::kNone;
    return {};
  }
  if (*choice == "required") {
    request.tool_choice = ToolChoice::kRequired;
    return {};
  }
  const Json* function = find(*choice, "function");
  const Json* name = function == nullptr ? nullptr : find(*function, "name");
  if (name == nullptr || !name->is_string()) {
    return invalid_input("tool_choice is {}; use auto, none, required or {{\"function\": {{\"name\": ...}}}}",
                         dump_json(*choice));
  }
  request.tool_choice = ToolChoice::kNamed;
  request.tool_choice_name = name->get<std::string>();
  return {};
}

// Tools and response format of the whole request belong to the system message, which is made if there is none.
Status attach_to_system(const Json& root, ChatRequest& request) {
  std::vector<std::string> tools;
  std::string response_format;
  DI_RETURN_IF_ERROR(parse_tools(root, "", tools));
  DI_RETURN_IF_ERROR(parse_response_format(root, "", response_format));
  if (request.tool_choice == ToolChoice::kNone) tools.clear();
  if (tools.empty() && response_format.empty()) return {};
  if (request.messages[0].role != Role::kSystem) request.messages.insert(request.messages.begin(), {Role::kSystem});
  ChatMessage& system = request.messages[0];
  if (!tools.empty()) system.tools = std::move(tools);
  if (!response_format.empty()) system.response_format = std::move(response_format);
  return {};
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view json) {
  DI_ASSIGN_OR_RETURN(const Json root, parse_json(json));
  const Json* messages = find(root, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return invalid_input("messages is missing or empty; give a list with at least one message");
  }
  ChatRequest request;
  for (size_t i = 0; i < messages->size(); ++i) {
    DI_ASSIGN_OR_RETURN(ChatMessage message, parse_message((*messages)[i], fmt::format("messages[{}]", i)));
    request.messages.push_back(std::move(message));
  }
  DI_RETURN_IF_ERROR(parse_thinking(root, request));
  DI_ASSIGN_OR_RETURN(request.drop_thinking, flag_member(root, "drop_thinking", "request", true));
  DI_RETURN_IF_ERROR(parse_tool_choice(root, request));
  DI_RETURN_IF_ERROR(attach_to_system(root, request));
  return request;
}

}  // namespace deepinfer
