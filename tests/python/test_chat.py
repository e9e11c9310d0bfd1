import unittest

from support import answer, params, tiny

HELLO = [{"role": "user", "content": "Hello! Who are you?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


class Chat(unittest.TestCase):
    def test_a_conversation_is_answered_as_its_prompt_is(self):
        chat = tiny().chat(HELLO, params(), thinking=False)
        self.assertEqual(len(chat), 1)
        ids = tiny().encode_chat(HELLO, thinking=False)
        self.assertEqual(chat[0].prompt_token_ids, ids)
        self.assertEqual(answer(chat[0]), answer(tiny().generate({"prompt_token_ids": ids}, params())[0]))
        self.assertIn("Hello! Who are you?", chat[0].prompt)

    def test_several_conversations_are_answered_in_order(self):
        others = [HELLO, [{"role": "system", "content": "Be brief."}, *HELLO]]
        together = tiny().chat(others, params(), thinking=False)
        alone = [tiny().chat(messages, params(), thinking=False)[0] for messages in others]
        self.assertEqual([answer(o) for o in together], [answer(o) for o in alone])

    def test_options_change_the_prompt(self):
        prompts = [
            tiny().encode_chat(HELLO, thinking=False),
            tiny().encode_chat(HELLO, thinking=True),
            tiny().encode_chat(HELLO, thinking=True, reasoning_effort=100),
            tiny().encode_chat(HELLO, thinking=False, tools=TOOLS),
        ]
        self.assertEqual(len({tuple(prompt) for prompt in prompts}), 4)
        self.assertEqual(tiny().encode_chat(HELLO, reasoning_effort="none"), prompts[0])
        self.assertEqual(tiny().encode_chat(HELLO, thinking=False, tools=TOOLS, tool_choice="none"), prompts[0])

    def test_malformed_conversations_are_refused_with_their_path(self):
        for messages, message in [
            ([], "messages is missing or empty"),
            ([{"role": "nobody", "content": ""}], r'messages\[0\].role is "nobody"'),
            ([{"role": "user"}], r"messages\[0\].content is missing"),
        ]:
            with self.assertRaisesRegex(ValueError, message):
                tiny().chat(messages)
        with self.assertRaisesRegex(ValueError, "reasoning_effort is"):
            tiny().chat(HELLO, reasoning_effort="huge")


if __name__ == "__main__":
    unittest.main()
