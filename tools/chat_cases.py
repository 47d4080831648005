#!/usr/bin/env python3
"""Renders conversations with the models' own chat templates, for tests/test_chat_formats.c.

chat_cases.py TEMPLATES > cases.jsonl: TEMPLATES is a folder with NAME.jinja for each name below;
they are the model makers' files and not part of this project. Jinja is set up as Hugging Face
transformers does. A line is {"template", "case", "request", "want"}, or "error" in place of "want"
where the template refuses; before those of a template with tools is one with what it writes before
and after the list of them, {"template", "system", "intro", "outro"}. Needs jinja2."""
import json
import pathlib
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TOOL = {"type": "function", "function": {
    "name": "get", "description": "Dé <b> & \"c\"", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
NUMBERS = {"type": "function", "function": {
    "name": "a", "description": "", "parameters": {"type": "object", "properties": {
        "x": {"type": "array", "items": {"type": "number", "minimum": 1e-5, "maximum": 1e16},
              "default": [1, 2.0, 0.1, -0.0, "q\"\\\n\u0001", {}, [], None, False]}}}}}
MANY = {"type": "function", "function": {
    "name": "many", "description": "Line\nand line", "parameters": {
        "type": "object", "required": ["Zeta", "alpha"], "properties": {
            "Zeta": {"type": "integer", "description": "an \u00fc", "nullable": True},
            "alpha": {"type": "string", "enum": ["x", "y"], "description": "choose"},
            "beta": {"type": "array", "items": {"type": ["string", "null"], "enum": ["a", None]}},
            "list": {"type": "array", "description": "of things", "items": {
                "type": "object", "properties": {"k": {"type": "boolean"}, "a": {"type": "string"}},
                "required": ["k"], "additionalProperties": {"B": 1, "a": "t"}}},
            "object": {"type": "object", "properties": {"in": {"type": "number"}},
                       "required": ["in"]},
            "free": {"type": "object", "additionalProperties": {"type": "string"}},
            "type": {"type": "string"}, "both": {"type": ["string", "integer"]}}}}}
BARE = {"type": "function", "function": {"name": "ping", "description": "Pings"}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, ident):
    return {"type": "function", "id": ident,
            "function": {"name": name, "arguments": arguments}}


ARGS = {"city": "Rom\nII", "n": 3, "b": True, "l": [1, {"a": None, "B": "é"}], "z": None, "F": 1.5}
USER, HI = say("user", "Q"), say("user", "  Hi\n")
WORK = [
    say("user", "Q"),
    say("assistant", "Let me see.", reasoning_content="hm",
        tool_calls=[call("get", {"city": "Rom"}, "c1"), call("ping", {}, "c2")]),
    say("tool", "one", tool_call_id="c1"), say("tool", "{\"two\": 2}", tool_call_id="c2"),
]
CASES = [
    ("a question", [USER], None),
    ("white space", [HI], None),
    ("system", [say("system", " S\n"), HI], None),
    ("a later system message", [USER, say("system", "T"), USER], None),
    ("an answer", [USER, say("assistant", "A"), say("user", "R")], None),
    ("an answer with reasoning", [USER, say("assistant", " A\n", reasoning_content="old"),
                                  say("user", "R")], None),
    ("reasoning in the text", [USER, say("assistant", "<think>\na\n</think>\n\nb"),
                               say("user", "R")], None),
    ("the latest answer", [USER, say("assistant", "A", reasoning_content="\nnew \n")], None),
    ("the latest answer without reasoning", [USER, say("assistant", "A")], None),
    ("a tool", [USER], [TOOL]),
    ("a tool and system", [say("system", "S "), USER], [TOOL, BARE]),
    ("numbers in a schema", [USER], [NUMBERS]),
    ("many parameters", [USER], [MANY]),
    ("calls without results", WORK[:2], [TOOL]),
    ("calls and results", WORK, [TOOL, BARE]),
    ("calls, then the answer", WORK + [say("assistant", "So: 4", reasoning_content="done")], None),
    ("calls, then the next question", WORK + [say("assistant", "So: 4"), say("user", "R")], None),
    ("calls in two steps", [
        USER, say("assistant", "", reasoning_content="first", tool_calls=[call("get", ARGS, "d1")]),
        say("tool", " r ", tool_call_id="d1"),
        say("assistant", "", reasoning_content="second", tool_calls=[call("ping", {}, "d2")]),
        say("tool", "s", tool_call_id="d2")], [TOOL, BARE]),
    ("calls before the last question", [
        USER, say("assistant", "x", reasoning_content="old", tool_calls=[call("get", ARGS, "e1")]),
        say("tool", "r", tool_call_id="e1"), say("assistant", "A"), say("user", "R")], [TOOL]),
    ("a result in the user's text", [
        USER, say("assistant", "<think>\na\n</think>\n\nb"),
        say("user", "<tool_response>r</tool_response>"), say("assistant", "c")], None),
    ("switched off by the user", [say("user", "Q/nothink")], None),
    ("channels in the text", [USER, say("assistant", "<|channel>thought\nx<channel|> A "),
                              say("user", "R")], None),
]
# the tokens that templates know by variables
TOKENS = {"GLM": (None, "<|endoftext|>"), "google": ("<bos>", "<turn|>"),
          "Mi": ("<s>", "</s>"), "OLMo": ("<|endoftext|>", "<|endoftext|>")}
NAMES = ["Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B", "Qwen3.6", "GLM-4.6", "GLM-4.7-Flash",
         "google-gemma-4-31B-it", "Mixtral-8x7B", "Mistral-old", "OLMoE-0125", "OLMo-7B"]


def environment():
    def refuse(message):
        raise ValueError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda form: "2026-01-31"
    return env


def sentences(template):
    """What stands around the list of tools: from "# Tools" on, up to the next turn or token."""
    text = template.render(messages=[USER], tools=[BARE], add_generation_prompt=False)
    first = "\n<function>\n" if "\n<function>\n" in text else json.dumps(BARE)
    last = "\n</function>" if "\n</function>\n</tools>" in text else json.dumps(BARE)
    if "# Tools" not in text:
        return None
    rest = text[text.index(last) + len(last):]
    ends = [rest.index(t) for t in ("<|im_end|>", "<|user|>") if t in rest]
    before = text[:text.index("# Tools")].strip()
    return {"system": before[before.rindex("system") + 6:].lstrip("|>\n"),
            "intro": text[text.index("# Tools"):text.index(first)], "outro": rest[:min(ends)]}


def main():
    env = environment()
    for name in NAMES:
        source = pathlib.Path(sys.argv[1], name + ".jinja").read_text(encoding="utf-8")
        template = env.from_string(source)
        bos, eos = next((v for k, v in TOKENS.items() if name.startswith(k)), (None, "<|im_end|>"))
        switches = [None, True, False] if "enable_thinking" in source else [None]
        no_tools = name.startswith(("Mi", "OLMo"))
        if not no_tools and sentences(template):
            print(json.dumps({"template": name, **sentences(template)}, ensure_ascii=False))
        for case, messages, tools in CASES:
            if no_tools and (tools or any(m["role"] == "tool" or "tool_calls" in m
                                          for m in messages)):
                continue
            if name == "Mistral-old" and messages[0]["role"] == "system":
                continue                 # refused there; here it is put before the question
            for thinking in switches:
                for cue in (True, False):
                    extra = {} if thinking is None else {"enable_thinking": thinking}
                    request = {"messages": messages, "tools": tools, "cue": cue, **extra}
                    line = {"template": name, "case": case, "request": request}
                    try:
                        line["want"] = template.render(
                            messages=messages, tools=tools, bos_token=bos or "", eos_token=eos,
                            add_generation_prompt=cue, **extra)
                    except ValueError as why:
                        line["error"] = str(why)
                    print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
