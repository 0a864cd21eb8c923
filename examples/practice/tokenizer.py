"""A tokenizer of a few hundred ids and its chat template, for conversations with one question and a tool.

Invariants: every text can be written (bytes are the smallest pieces); a digit is an id of its own, so that numbers are
copied digit by digit; the template is append-only and writes calls in the Hermes format.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

START, END, PADDING = "<|im_start|>", "<|im_end|>", "<|pad|>"
TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool.function.name }}({{ tool.function.parameters.properties | join(", ") }})\
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML, with the names of the tools and of their arguments in place of their whole schemas, which would be most of a
prompt."""
_VOCABULARY = 384
_LONGEST = 16
"""Characters of an id's text at most: a call is several decisions of the model and not a single one."""


def write_tokenizer(texts: Iterable[str], folder: Path) -> int:
    """Learns a byte-level BPE of the texts and writes it into the folder. Returns the size of the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    # No words: a piece may go over spaces and line ends, but not over a digit.
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_alone])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[PADDING, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=_LONGEST,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        eos_token=END,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )
    whole.save_pretrained(folder)
    return len(whole)
