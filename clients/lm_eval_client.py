"""`lm-eval`'s `local-completions` model, unmodified, with the server's tokenizer.

Likelihoods of continuations and of whole documents, and generated answers."""

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from served import MODEL, URL, check

options = {"tokenizer_backend": "remote", "max_length": 512, "num_concurrent": 4, "batch_size": 1}
model = get_model("local-completions")(base_url=f"{URL}/v1/completions", model=MODEL, **options)


def ask(kind, *arguments):
    """The model's answers to requests of one kind, as a task would put them."""
    requests = [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]
    return getattr(model, kind)(requests)


def chat(question):
    return model.tokenizer.apply_chat_template([{"role": "user", "content": question}])


check("remote tokenizer", model.tok_encode("two words") and model.tokenizer.eos_token == "<|im_end|>")
check("the chat template", chat("Hello").startswith("<|im_start|>user\nHello"))

# As in multiple-choice tasks, several answers to one question are scored: the right one is likeliest, and is the greedy
# answer.
capital = chat("What is the capital of France?")
whole = ask("generate_until", (capital, {"until": ["<|im_end|>"], "max_gen_toks": 40, "temperature": 0}))[0]
check("an answer", "Paris" in whole)
other = whole.replace("Paris", "Rome")
right, wrong = ask("loglikelihood", (capital, whole), (capital, other))
check("the right answer is likelier", right[0] > wrong[0] and right[0] <= 0)
check("greedy", right[1] and not wrong[1])

# A likelihood does not depend on what it is asked together with.
alone = [ask("loglikelihood", (capital, text))[0] for text in (whole, other)]
check("alone or together", alone == [right, wrong])
check("whole documents", ask("loglikelihood_rolling", ("The capital of France is Paris.",))[0] < 0)

# Stop texts end an answer and are not part of it.
until = whole.split()[-1]
cut = ask("generate_until", (capital, {"until": [until], "max_gen_toks": 40, "temperature": 0}))[0]
check("until", until not in cut and whole.startswith(cut))
