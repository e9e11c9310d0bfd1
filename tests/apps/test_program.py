"""The deepinfer program as a user meets it: output, messages, exit codes, interrupts.

Run by ctest with DEEPINFER_PROGRAM (the built program) and DEEPINFER_ROOT (the repository). Tests of generate, chat and
score need a checkpoint with a tokenizer: models/tiny, else the folder that DEEPINFER_TEST_MODEL names; without, they skip.
"""

import json
import math
import os
import signal
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ.get("DEEPINFER_PROGRAM", "")
ROOT = Path(os.environ.get("DEEPINFER_ROOT", Path(__file__).parents[2]))
GOLDEN = ROOT / "tests" / "golden" / "model" / "tiny_full"
TOKENIZER = ROOT / "tests" / "golden" / "tokenizer"
COMMANDS = ("generate", "chat", "score", "tokenize", "logits", "inspect", "settings", "bench")
BAD_INPUT = 2
INTERRUPTED = 130


def has_checkpoint(folder):
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors")) and (folder / "tokenizer.json").is_file()


def find_model():
    named = os.environ.get("DEEPINFER_TEST_MODEL")
    for folder in [ROOT / "models" / "tiny"] + ([Path(named)] if named else []):
        if has_checkpoint(folder):
            return folder
    return None


MODEL = find_model()
needs_model = unittest.skipUnless(MODEL, "no checkpoint with a tokenizer in models/tiny or DEEPINFER_TEST_MODEL")


def environment():
    """Without settings of the engine, which would also refuse the variables of this test by their names."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DEEPINFER_")}


def run(*arguments, text="", env=None):
    """Result with stdout and stderr as bytes."""
    command = [PROGRAM, *map(str, arguments)]
    return subprocess.run(command, input=text.encode(), capture_output=True, timeout=300, env=environment() | (env or {}))


class ProgramTest(unittest.TestCase):
    def succeed(self, *arguments, text=""):
        result = run(*arguments, text=text)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return result.stdout

    def refuse(self, *arguments, naming, text=""):
        """Exit code 2, nothing on stdout, one line on stderr that names the value; after it at most where to find help."""
        result = run(*arguments, text=text)
        message = result.stderr.decode()
        self.assertEqual(result.returncode, BAD_INPUT, f"{arguments}: {message}")
        self.assertEqual(result.stdout, b"", f"{arguments}: a refused request prints no half result")
        lines = message.splitlines()
        self.assertTrue(lines and lines[0].startswith("deepinfer: "), f"{arguments}: {message!r}")
        self.assertIn(str(naming), lines[0])
        for line in lines[1:]:
            self.assertRegex(line, r"^deepinfer( \w+)* --help lists what there is$")
        return message


class Logits(ProgramTest):
    def test_exact_numerics_equal_the_golden_values_and_chunks_change_no_byte(self):
        cases = json.loads((GOLDEN / "golden.json").read_text())
        by_length = sorted(cases, key=lambda case: len(case["prompt"]))
        for case in (by_length[len(by_length) // 2], by_length[-1]):
            outputs = set()
            for chunk in (1, 3, 512):
                outputs.add(self.succeed(
                    "logits", "-m", GOLDEN, "--numerics", "exact", "--chunk-tokens", chunk,
                    "--tokens", ",".join(map(str, case["prompt"])), "--decode", ",".join(map(str, case["greedy_f64"]))))  # fmt: skip
            self.assertEqual(len(outputs), 1, "the output depends on --chunk-tokens")
            rows = json.loads(outputs.pop())["logits"]
            self.assertEqual(len(rows), len(case["logits_f64"]))
            for row, golden in zip(rows, case["logits_f64"]):
                largest = max(map(abs, golden))
                self.assertLess(max(abs(a - b) for a, b in zip(row, golden, strict=True)), 1e-4 * largest)

    def test_threads_and_kernels_change_no_byte(self):
        request = ("logits", "-m", GOLDEN, "--tokens", "0,5,17,200,3,3,9,10,11")
        outputs = {self.succeed(*request, "--threads", threads, "--kernels", kernels)
                   for threads, kernels in ((1, "reference"), (1, "avx2"), (3, "avx2"))}  # fmt: skip
        self.assertEqual(len(outputs), 1)

    def test_bad_ids_are_named(self):
        self.refuse("logits", "-m", GOLDEN, "--tokens", "1,256", naming="256")
        self.refuse("logits", "-m", GOLDEN, "--tokens", "1,2", "--decode", "3,999", naming="999")
        self.refuse("logits", "-m", GOLDEN, "--tokens=-5", naming="-5")
        self.refuse("logits", "-m", GOLDEN, "--tokens", "1,two", naming="two")
        for holes in ("1,,2", ",1", "1,", "1, 2"):
            self.refuse("logits", "-m", GOLDEN, "--tokens", holes, naming=holes)
            self.refuse("generate", "-m", GOLDEN, "-p", "a", "--stop-token-ids", holes, naming=holes)
        self.refuse("logits", "-m", GOLDEN, "--tokens", "99999999999", naming="99999999999")
        self.refuse("logits", "-m", GOLDEN, "--tokens", "", naming="--tokens")


class Refusals(ProgramTest):
    def test_unknown_commands_and_options_are_named(self):
        self.refuse("frobnicate", naming="frobnicate")
        self.refuse("generate", "-m", GOLDEN, "--frobnicate", naming="--frobnicate")
        self.refuse("logits", "-m", GOLDEN, "--tokens", "1", "--chunk-tokens", "0", naming="--chunk-tokens")
        self.refuse("logits", "-m", GOLDEN, "--tokens", "1", "--numerics", "rough", naming="rough")
        self.refuse("logits", "-m", GOLDEN, "--tokens", "1", "--kernels", "mmx", naming="mmx")
        self.refuse("logits", "-m", GOLDEN, "--tokens", "1", "--threads", "-3", naming="-3")
        self.refuse("logits", "--tokens", "1", naming="--model")

    def test_without_a_command_the_help_is_shown(self):
        result = run()
        self.assertEqual(result.returncode, BAD_INPUT)
        self.assertIn(b"generate", result.stdout)

    def test_missing_folders_and_files_are_named(self):
        self.refuse("logits", "-m", "/no/such/model", "--tokens", "1", naming="/no/such/model")
        self.refuse("generate", "-m", "/no/such/model", "-p", "x", naming="/no/such/model")
        self.refuse("inspect", "/no/such/model", naming="/no/such/model")
        self.refuse("tokenize", "-m", "/no/such/model", "x", naming="/no/such/model")
        self.refuse("score", "-m", GOLDEN, "/no/such/text", naming="/no/such/text")
        self.refuse("tokenize", "-m", TOKENIZER, "-f", "/no/such/text", naming="/no/such/text")

    def test_a_file_instead_of_a_folder_and_a_folder_instead_of_a_file_are_named(self):
        self.refuse("inspect", GOLDEN / "config.json", naming="config.json")
        self.refuse("logits", "-m", GOLDEN / "config.json", "--tokens", "1", naming="config.json")
        self.refuse("score", "-m", GOLDEN, ROOT, naming=ROOT)
        self.refuse("tokenize", "-m", TOKENIZER, "-f", ROOT, naming=ROOT)

    def test_an_unreadable_file_is_named(self):
        if os.geteuid() == 0:
            self.skipTest("the administrator may read every file")
        with tempfile.NamedTemporaryFile() as file:
            os.chmod(file.name, 0)
            self.refuse("score", "-m", GOLDEN, file.name, naming=file.name)

    def test_a_model_without_tokenizer_says_so(self):
        self.refuse("generate", "-m", GOLDEN, "-p", "x", naming="tokenizer.json")
        self.refuse("chat", "-m", GOLDEN, naming="tokenizer.json", text="hello\n")

    def test_damaged_json_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("model.safetensors", "token_map.json"):
                os.symlink(GOLDEN / name, f"{folder}/{name}")
            Path(folder, "config.json").write_text((GOLDEN / "config.json").read_text()[:300])
            self.refuse("logits", "-m", folder, "--tokens", "1", naming="config.json")
            self.refuse("inspect", folder, naming="config.json")
            Path(folder, "config.json").write_bytes((GOLDEN / "config.json").read_bytes())
            Path(folder, "tokenizer.json").write_text("{}")
            self.refuse("logits", "-m", folder, "--tokens", "1", naming="tokenizer.json")


class Help(ProgramTest):
    def test_of_every_command_fits_a_terminal(self):
        for command in [[], *([name] for name in COMMANDS), ["bench", "model"], ["bench", "engine"]]:
            text = self.succeed(*command, "--help").decode()
            self.assertIn("Usage", text)
            for line in text.splitlines():
                self.assertLessEqual(len(line), 100, f"{command}: {line}")

    def test_of_the_program_names_every_command(self):
        text = self.succeed("--help").decode()
        for command in COMMANDS:
            self.assertRegex(text, rf"(?m)^  {command} ")
        self.assertIn("--chunk-tokens", self.succeed("--help-all").decode())

    def test_shows_the_few_settings_that_most_people_want_and_names_where_the_others_are(self):
        text = self.succeed("generate", "--help").decode()
        self.assertIn("--threads", text)
        self.assertIn("deepinfer settings", text)
        self.assertNotIn("--prefill-attempt-interval", text)


class Settings(ProgramTest):
    def test_list_what_flags_and_environment_set(self):
        text = self.succeed("settings").decode()
        self.assertRegex(text, r"(?m)^  --max-num-seqs 64$")
        self.assertRegex(text, r"(?m)^  --model \(none\)$")
        for line in text.splitlines():
            self.assertLessEqual(len(line), 100, line)
        result = run("settings", "--max-num-seqs", "3", env={"DEEPINFER_THREADS": "2", "DEEPINFER_MAX_NUM_SEQS": "5"})
        self.assertRegex(result.stdout.decode(), r"(?m)^  --max-num-seqs 3   \(default 64\)$")
        self.assertRegex(result.stdout.decode(), r"(?m)^  --threads 2   \(default 0\)$")

    def test_as_markdown_are_the_documentation(self):
        self.assertEqual(self.succeed("settings", "--markdown").decode(), (ROOT / "docs" / "settings.md").read_text())

    def test_that_are_wrong_are_named_as_they_were_spelled(self):
        self.refuse("settings", "--max-num-seqs", "0", naming="--max-num-seqs '0'")
        self.refuse("generate", "-m", GOLDEN, "-p", "x", "--kv-cache-bytes", "lots", naming="--kv-cache-bytes 'lots'")
        self.refuse("generate", "-m", GOLDEN, "-p", "x", "--use-nextn-decode", "3", naming="not built")
        self.refuse("generate", "-p", "x", naming="model")
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("max_nun_seqs = 3\n")
            file.flush()
            self.refuse("settings", "--settings", file.name, naming="max_num_seqs")


class Tokenize(ProgramTest):
    LINES = {
        "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ":
            "19923 3 223 5464 5008 1175 19 940 223 19 438 223 20 6113 257 76589 131 100 76032 1628 76589 131 108 76589 131 98",
        "The quick brown fox jumps over the lazy dog.": "671 4787 13769 46012 54994 1060 270 41638 6397 16",
        "naïve café Zürich — “quotes” ‘single’ … ©®™ €£¥":
            "2720 91223 57664 125388 616 2136 811 403 7183 430 2096 54492 442 5532 13420 16760 26819 21820 25418 62019",
    }  # fmt: skip

    def test_gives_the_published_ids_and_back(self):
        for line, ids in self.LINES.items():
            self.assertEqual(self.succeed("tokenize", "-m", TOKENIZER, line).decode(), ids + "\n")
            decoded = self.succeed("tokenize", "-m", TOKENIZER, "--decode", ids.replace(" ", ","))
            self.assertEqual(decoded.decode(), line + "\n")

    def test_reads_standard_input_and_counts(self):
        line, ids = list(self.LINES.items())[1]
        file = TOKENIZER / "tokenizer.json"
        self.assertEqual(self.succeed("tokenize", "-m", file, text=line).decode(), ids + "\n")
        self.assertEqual(self.succeed("tokenize", "-m", file, "--count", text=line).decode(), "10\n")
        out = json.loads(self.succeed("tokenize", "-m", file, "--json", "--pieces", line))
        self.assertEqual(out["tokens"], [int(id) for id in ids.split()])
        self.assertEqual(out["pieces"][1], "Ġquick")

    def test_control_tokens_are_text_unless_asked_for(self):
        text = "<｜User｜>q<｜Assistant｜>"
        asked = self.succeed("tokenize", "-m", TOKENIZER, "--control-tokens", text).decode().split()
        self.assertEqual((asked[0], asked[-1]), ("128803", "128804"))
        self.assertNotIn("128803", self.succeed("tokenize", "-m", TOKENIZER, text).decode().split())

    def test_ids_that_are_no_whole_characters_decode_to_valid_text(self):
        out = self.succeed("tokenize", "-m", TOKENIZER, "--decode", "131,131", "--json")
        self.assertIn("\ufffd", json.loads(out)["text"])

    def test_bad_ids_are_named(self):
        self.refuse("tokenize", "-m", TOKENIZER, "--decode", "5,129280", naming="129280")
        self.refuse("tokenize", "-m", TOKENIZER, "--decode=-1", naming="-1")
        self.refuse("tokenize", "-m", TOKENIZER, "--decode", "", naming="--decode")


class Inspect(ProgramTest):
    def test_json_adds_up_and_agrees_with_the_file(self):
        with open(GOLDEN / "model.safetensors", "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = {name: entry for name, entry in json.loads(file.read(size)).items() if name != "__metadata__"}
        out = json.loads(self.succeed("inspect", "--json", GOLDEN))
        for name in [name for name in out if "bytes" in name]:
            self.assertIsInstance(out[name], int, name)
        self.assertEqual(out["tensors"], len(header))
        self.assertEqual(out["bytes"], sum(e["data_offsets"][1] - e["data_offsets"][0] for e in header.values()))
        for field in ("tensors", "bytes"):
            self.assertEqual(out[field], sum(kind[field] for kind in out["kinds"].values()))
        self.assertEqual(out["bytes"], out["resident_bytes"] + out["mapped_bytes"] + out["unused_bytes"])
        self.assertEqual(out["shards"], 1)
        self.assertIs(out["fits"], True)

    def test_text_names_layers_and_memory(self):
        text = self.succeed("inspect", GOLDEN).decode()
        self.assertRegex(text, r"(?m)^8 layers, hidden 128, vocabulary 256")
        self.assertIn("memory:", text)


@needs_model
class Generate(ProgramTest):
    REQUEST = ("generate", "-m", MODEL, "-n", 24, "--seed", 7, "--ignore-eos", "-p", "Once upon a time there was a")

    def test_the_same_seed_gives_the_same_bytes_however_it_runs(self):
        outputs = {self.succeed(*self.REQUEST, *flags)
                   for flags in ((), ("--chunk-tokens", 1), ("--max-num-batched-tokens", 3, "--threads", 1), ("--threads", 3),
                                 ("--kernels", "avx2"), ("--engram-cache-rows", 0), ("--zero-overhead-scheduling", 0))}  # fmt: skip
        self.assertEqual(len(outputs), 1)
        self.assertTrue(outputs.pop().startswith(b"Once upon a time there was a"))
        another = list(self.REQUEST)
        another[another.index("--seed") + 1] = 8
        self.assertNotEqual(self.succeed(*another), self.succeed(*self.REQUEST))

    def test_json_holds_what_is_needed_to_repeat_it(self):
        out = json.loads(self.succeed(*self.REQUEST, "--json", "-t", 0.8, "--top-p", 0.9, "--top-k", 40, "--min-p", 0.01))
        self.assertEqual(len(out["tokens"]), 24)
        self.assertEqual(out["finish_reason"], "length")
        expected = {"seed": 7, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "numerics": "official"}
        self.assertEqual({name: out[name] for name in expected}, expected)
        self.assertGreater(out["prompt_tokens"], 1)
        self.assertRegex(out["device"], r"^cpu, \d+ threads?.* kernels")
        self.assertRegex(out["fingerprint"], r"^official/fp32/replay-off/[0-9a-f]{16}$")
        self.assertIsNone(out["stop_reason"])
        self.assertEqual(out["num_cached_tokens"], 0)
        ids = ",".join(map(str, out["tokens"]))
        self.assertEqual(self.succeed("tokenize", "-m", MODEL, "--decode", ids).decode(), out["text"] + "\n")

    def answer(self, *flags):
        request = list(self.REQUEST)
        if "-n" in flags:
            del request[request.index("-n") : request.index("-n") + 2]
        return json.loads(self.succeed(*request, "--json", *flags))

    def test_ends_at_stop_strings_and_stop_tokens_and_says_so(self):
        whole = self.answer()
        stop = whole["text"][12:17]
        for flags, shown in ((("--stop", "no such text", "--stop", stop), ""), (("--stop", stop, "--include-stop"), stop)):
            out = self.answer(*flags)
            self.assertEqual(out["text"], whole["text"][: whole["text"].index(stop)] + shown)
            self.assertEqual((out["finish_reason"], out["stop_reason"]), ("stop", stop))
        token = whole["tokens"][9]
        out = self.answer("--stop-token-ids", token)
        self.assertEqual(out["tokens"], whole["tokens"][: whole["tokens"].index(token) + 1])
        self.assertEqual((out["finish_reason"], out["stop_reason"]), ("stop", str(token)))

    def test_several_answers_share_a_prompt_and_the_first_is_that_of_one(self):
        out = self.answer("--n", 3)
        self.assertEqual(len(out["choices"]), 3)
        self.assertEqual(out["choices"][0]["tokens"], self.answer()["tokens"])
        self.assertEqual(len({choice["text"] for choice in out["choices"]}), 3)
        text = self.succeed(*self.REQUEST, "--n", 2).decode()
        self.assertIn("[answer 2 of 2, length]", text)

    def test_reports_log_probabilities(self):
        out = self.answer("--logprobs", 2, "--prompt-logprobs", 0)
        self.assertEqual([at["token"] for at in out["logprobs"]], out["tokens"])
        self.assertEqual(len(out["prompt_logprobs"]), out["prompt_tokens"] - 1)
        for at in out["logprobs"]:
            self.assertEqual(len(at["best"]), 2)
            self.assertLessEqual(at["logprob"], at["best"][0]["logprob"])
        self.assertAlmostEqual(out["cumulative_logprob"], sum(at["logprob"] for at in out["logprobs"]), places=9)

    def test_honours_allowed_tokens_bias_penalties_and_least_length(self):
        self.assertLessEqual(set(self.answer("--allowed-token-ids", "50,60,70")["tokens"]), {50, 60, 70})
        self.assertEqual(set(self.answer("--logit-bias", "50:100", "--logit-bias", "60:-100")["tokens"]), {50})
        greedy = self.answer("-t", 0)["tokens"]
        for penalty in ("--presence-penalty", "--frequency-penalty", "--repetition-penalty"):
            self.assertNotEqual(self.answer("-t", 0, penalty, 1.9)["tokens"], greedy, penalty)
        out = self.answer("--allowed-token-ids", "50,60", "--stop-token-ids", "50", "--min-tokens", 11)
        self.assertEqual(set(out["tokens"][:11]), {60}, "the stop token may not come before")
        word = self.answer("-t", 0)["text"].split()[1]
        self.assertNotIn(f" {word} ", self.answer("-t", 0, "--bad-words", word)["text"])

    def test_ends_at_the_longest_length_and_in_time(self):
        out = self.answer("--max-model-len", 40, "-n", 1000)
        self.assertEqual(out["prompt_tokens"] + len(out["tokens"]), 40)
        self.assertEqual(out["finish_reason"], "length")
        out = self.answer("-n", 100000, "--timeout", 0.5)
        self.assertEqual(out["finish_reason"], "abort")

    def test_control_tokens_are_text_unless_asked_for(self):
        request = ("generate", "-m", MODEL, "-n", 1, "--json", "-p", "<｜User｜>q<｜Assistant｜>")
        plain, asked = (json.loads(self.succeed(*request, *flags)) for flags in ((), ("--control-tokens",)))
        self.assertEqual(asked["prompt_tokens"], 4, "begin of sentence, two markers and a letter")
        self.assertGreater(plain["prompt_tokens"], 4)

    def test_text_comes_from_a_file_or_standard_input_alike(self):
        request = ("generate", "-m", MODEL, "-n", 5, "--seed", 1, "--json")
        out = json.loads(self.succeed(*request, "-p", "A small dog"))
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("A small dog")
            file.flush()
            self.assertEqual(json.loads(self.succeed(*request, "-f", file.name))["tokens"], out["tokens"])
        self.assertEqual(json.loads(self.succeed(*request, text="A small dog"))["tokens"], out["tokens"])

    def test_bad_sampling_values_and_prompts_are_named(self):
        for flag, value in (("-t", -1), ("-t", "nan"), ("--top-p", 0), ("--top-p", 1.5), ("--top-k", -2), ("--min-p", 2),
                            ("--seed", -1), ("--seed", "x"), ("-n", 0), ("-n", "many"),
                            ("--n", 0), ("--presence-penalty", 3), ("--repetition-penalty", 0), ("--logprobs", 99),
                            ("--logit-bias", "5"), ("--logit-bias", "5:x"), ("--stop-token-ids", "999999")):  # fmt: skip
            with self.subTest(flag=flag, value=value):
                self.refuse("generate", "-m", MODEL, "-p", "hi", f"{flag}={value}" if flag[1] == "-" else flag, *(
                    () if flag[1] == "-" else (value,)), naming=value)  # fmt: skip
        self.refuse("generate", "-m", MODEL, "-p", "", "--no-bos", naming="empty")
        self.refuse("generate", "-m", MODEL, "-f", "/no/such/text", naming="/no/such/text")
        self.refuse("generate", "-m", MODEL, "-f", ROOT, naming=ROOT)
        self.refuse("chat", "-m", MODEL, "--top-p", "0", naming="0", text="hello\n")
        self.refuse("chat", "-m", MODEL, "--effort", "101", naming="101")

    def start(self, *arguments):
        command = [PROGRAM, *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())

    def test_an_interrupt_ends_it_with_the_text_so_far(self):
        request = ("generate", "-m", MODEL, "-n", 100000, "--seed", 7, "--ignore-eos", "-p", "Once upon a time")
        process = self.start(*request)
        first = b""
        while len(first) < len("Once upon a time") + 20:  # some tokens
            piece = process.stdout.read1(100)
            self.assertTrue(piece, process.stderr.read() if process.poll() is not None else "")
            first += piece
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, errors)
        self.assertTrue(first.startswith(b"Once upon a time"))
        self.assertTrue((first + rest).endswith(b"\n"))
        self.assertIn(b"seed 7", errors)
        (first + rest).decode()  # whole characters

    def test_a_reader_that_leaves_does_not_crash_it(self):
        for arguments in (("generate", "-m", MODEL, "-n", 300, "--ignore-eos", "-p", "Once"), ("tokenize", "-m", TOKENIZER, "x" * 9)):
            process = self.start(*arguments)
            process.stdout.close()
            process.stdin.close()
            errors = process.stderr.read()
            process.stderr.close()
            code = process.wait(timeout=120)
            self.assertIn(code, (0, BAD_INPUT, 1, -signal.SIGPIPE), errors)

    def test_a_tokenizer_with_fewer_tokens_than_the_model_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in MODEL.iterdir():
                if path.name not in ("tokenizer.json", "config.json"):
                    os.symlink(path.resolve(), f"{folder}/{path.name}")
            tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
            size = len(tokenizer["model"]["vocab"].keys() | {token["content"] for token in tokenizer["added_tokens"]})
            last = max(tokenizer["added_tokens"], key=lambda token: token["id"])
            self.assertEqual(last["id"], size - 1, "the last token is an added one")
            tokenizer["added_tokens"].remove(last)
            Path(folder, "tokenizer.json").write_text(json.dumps(tokenizer))
            Path(folder, "config.json").write_bytes((MODEL / "config.json").read_bytes())
            self.refuse("generate", "-m", folder, "-p", "x", naming=size - 1)


@needs_model
class Chat(ProgramTest):
    def test_answers_piped_lines_the_same_way_each_time(self):
        request = ("chat", "-m", MODEL, "--seed", 3, "-n", 12)
        first = self.succeed(*request, text="Hello!\n\nWhat is a cat?\n")
        self.assertEqual(self.succeed(*request, "--threads", 1, text="Hello!\n\nWhat is a cat?\n"), first)
        one = self.succeed(*request, text="Hello!\n")
        self.assertTrue(first.startswith(one) and len(first) > len(one))
        self.assertNotIn(b"\033", first, "no terminal colours in a pipe")

    def test_knows_its_commands(self):
        out = self.succeed("chat", "-m", MODEL, "--seed", 3, "-n", 4, text="/help\n/think\n/think\n/clear\n/exit\nHello\n").decode()
        self.assertIn("thinking on", out)
        self.assertIn("thinking off", out)
        self.assertTrue(out.endswith("(a new conversation)\n"), "nothing is answered after /exit")

    def test_finds_its_past_in_the_prefix_cache(self):
        result = run("chat", "-m", MODEL, "-t", 0, "-n", 12, "--stats", text="Hello, who are you?\nTell me a story.\nAnother one.\n")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stderr.decode().splitlines()
        cached = [int(line.split(" more from the cache")[0].rsplit(" ", 1)[1]) for line in lines]
        self.assertEqual(len(cached), 3, lines)
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[1], 0)
        self.assertGreater(cached[2], cached[1] + 12, "the answer to the second question is found as well")
        without = run("chat", "-m", MODEL, "-t", 0, "-n", 12, "--enable-prefix-caching", 0,
                      text="Hello, who are you?\nTell me a story.\nAnother one.\n")  # fmt: skip
        self.assertEqual(without.stdout, result.stdout, "the cache changes no byte")

    def test_forgets_a_cleared_conversation(self):
        request = ("chat", "-m", MODEL, "-t", 0, "-n", 8)
        out = self.succeed(*request, text="Hello!\n/clear\nHello!\n").decode()
        answers = out.split("(a new conversation)\n")
        self.assertEqual(answers[0], answers[1])


@needs_model
class Score(ProgramTest):
    TEXT = "The dog ran to the park. It was a sunny day.\n"

    def test_the_sum_is_that_of_the_tokens_and_chunks_change_nothing(self):
        outputs = {self.succeed("score", "-m", MODEL, "-", "--json", "--chunk-tokens", chunk, text=self.TEXT) for chunk in (1, 4, 256)}
        self.assertEqual(len(outputs), 1)
        out = json.loads(outputs.pop())
        ids = [int(id) for id in self.succeed("tokenize", "-m", MODEL, text=self.TEXT).split()]
        self.assertEqual([token["id"] for token in out["tokens"]], ids)
        self.assertEqual(out["num_tokens"], len(ids))
        self.assertEqual(out["bytes"], len(self.TEXT.encode()))
        total = sum(token["logprob"] for token in out["tokens"])
        self.assertAlmostEqual(out["logprob"], total, delta=1e-9 * abs(total))
        self.assertAlmostEqual(out["perplexity"], math.exp(-total / len(ids)), delta=1e-6 * out["perplexity"])
        self.assertAlmostEqual(out["bits_per_byte"], -total / math.log(2) / len(self.TEXT), places=9)
        self.assertTrue(all(token["logprob"] <= 0 for token in out["tokens"]))

    def test_agrees_with_the_logits(self):
        out = json.loads(self.succeed("score", "-m", MODEL, "-", "--json", text="The dog ran"))
        config = json.loads((MODEL / "config.json").read_text())
        ids = [config["bos_token_id"]] + [token["id"] for token in out["tokens"]]
        rows = json.loads(self.succeed("logits", "-m", MODEL, "--tokens", ids[0], "--decode", ",".join(map(str, ids[1:]))))["logits"]
        for token, row in zip(out["tokens"], rows):
            largest = max(row)
            logprob = row[token["id"]] - largest - math.log(sum(math.exp(x - largest) for x in row))
            self.assertAlmostEqual(token["logprob"], logprob, places=6)

    def test_scores_each_line_of_a_jsonl_file_on_its_own(self):
        alone = [json.loads(self.succeed("score", "-m", MODEL, "-", "--json", text=text)) for text in ("One cat.", "Two dogs.")]
        lines = '{"text": "One cat."}\n\n{"text": "Two dogs."}\n{"text": "Three birds."}\n'
        both = json.loads(self.succeed("score", "-m", MODEL, "-", "--json", "--jsonl", "--max-documents", 2, text=lines))
        self.assertEqual(both["documents"], 2)
        self.assertEqual(both["tokens"], alone[0]["tokens"] + alone[1]["tokens"])

    def test_bad_texts_are_named(self):
        self.refuse("score", "-m", MODEL, "-", naming="no text", text="")
        self.refuse("score", "-m", MODEL, "-", "--jsonl", naming="line 2", text='{"text": "a"}\n{"txt": 1}\n')
        self.refuse("score", "-m", MODEL, "-", "--jsonl", naming="line 1", text="not json\n")
        self.refuse("score", "-m", MODEL, "-", "--context", "1", naming="--context")


if __name__ == "__main__":
    unittest.main()
