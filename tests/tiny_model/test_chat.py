"""Rendering of conversations, against worked examples of the prompt format."""

import unittest

from tools.tiny_model.chat import calls_block, render, segments, tools_block

BOS, EOS, S, U, A = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜System｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
EFFORT = "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n"


def user(content, **more):
    return {"role": "user", "content": content, **more}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content, **more):
    return {"role": "system", "content": content, **more}


TURNS = [user("q1"), assistant("a1", reasoning_content="r1"), user("q2")]


class ChatTest(unittest.TestCase):
    def test_a_question_without_thinking_opens_an_answer(self):
        self.assertEqual(render([user("q")]), BOS + U + "q" + A + "</think>")

    def test_thinking_starts_with_the_system_token_and_the_effort(self):
        self.assertEqual(render([user("q")], thinking=True), BOS + S + EFFORT % 75 + U + "q" + A + "<think>")
        self.assertIn("Effort: 50 ", render([user("q")], thinking=True, effort=50))

    def test_old_reasoning_is_dropped_unless_kept_on_request(self):
        head = BOS + S + EFFORT % 75 + U + "q1" + A
        self.assertEqual(render(TURNS, thinking=True), head + "</think>a1" + EOS + U + "q2" + A + "<think>")
        kept = render(TURNS, thinking=True, drop_thinking=False)
        self.assertEqual(kept, head + "<think>r1</think>a1" + EOS + U + "q2" + A + "<think>")

    def test_tools_keep_all_reasoning(self):
        text = render([system("", tools=[{"name": "f"}])] + TURNS, thinking=True)
        self.assertIn("<think>r1</think>a1", text)

    def test_a_system_message_later_on_has_its_own_token(self):
        text = render(TURNS[:2] + [system("MID"), user("q2")], thinking=True)
        self.assertTrue(text.endswith("</think>a1" + EOS + S + "MID" + U + "q2" + A + "<think>"))

    def test_a_whole_conversation_ends_each_answer(self):
        text = render([system("Be kind."), user("Hello"), assistant("Hi!"), user("Bye"), assistant("See you.")])
        answers = "Hi!" + EOS + U + "Bye" + A + "</think>See you." + EOS
        self.assertEqual(text, BOS + S + "Be kind." + U + "Hello" + A + "</think>" + answers)

    def test_calls_write_text_raw_and_everything_else_as_json(self):
        block = calls_block([{"name": "f", "arguments": '{"a": "x \\"y\\"", "b": [1, true], "c": 2}'}])
        self.assertEqual(
            block,
            "<｜DSML｜ calls>\n"
            '<｜DSML｜ invoke name="f">\n'
            '<｜DSML｜ parameter name="a" string="true">x "y"</｜DSML｜ parameter>\n'
            '<｜DSML｜ parameter name="b" string="false">[1, true]</｜DSML｜ parameter>\n'
            '<｜DSML｜ parameter name="c" string="false">2</｜DSML｜ parameter>\n'
            "</｜DSML｜ invoke>\n"
            "</｜DSML｜ calls>",
        )

    def test_a_call_without_parameters_has_an_empty_line(self):
        self.assertIn('invoke name="f">\n\n</', calls_block([{"name": "f", "arguments": {}}]))

    def test_tool_results_follow_the_order_of_their_calls_inside_one_user_message(self):
        calls = [{"id": "1", "name": "f", "arguments": {}}, {"id": "2", "name": "g", "arguments": {}}]
        results = [{"role": "tool", "content": c, "tool_call_id": i} for c, i in (("B", "2"), ("A", "1"))]
        text = render([user("q"), assistant("", tool_calls=calls)] + results + [user("go on")])
        self.assertTrue(text.endswith(
            EOS + U + "<tool_result>A</tool_result>\n\n<tool_result>B</tool_result>\n\ngo on" + A + "</think>"
        ))
        self.assertIn(A + "</think>\n\n<｜DSML｜ calls>", text)

    def test_the_tools_block_lists_one_schema_a_line_and_ends_with_a_line_end(self):
        block = tools_block([{"name": "f", "x": "ü"}, {"name": "g"}])
        self.assertIn('### Available Tool Schemas\n\n{"name": "f", "x": "ü"}\n{"name": "g"}\n\nYou MUST', block)
        self.assertTrue(block.endswith("to invoke tool calls.\n"))
        self.assertIn('"<｜DSML｜ calls>" block like the following:\n\n<｜DSML｜ calls>', block)

    def test_segments_mark_exactly_what_the_model_writes(self):
        parts = segments([user("q"), assistant("a")])
        self.assertEqual(parts, [(BOS + U + "q" + A + "</think>", False), ("a" + EOS, True)])

    def test_tasks_replace_the_answer_header(self):
        self.assertTrue(render([user("q", task="title")]).endswith(U + "q<｜title｜>"))
        self.assertTrue(render([user("q", task="action")]).endswith(A + "</think><｜action｜>"))


if __name__ == "__main__":
    unittest.main()
