"""What lm-eval logs reaches the user once, with how often it came."""

import logging

import pytest

from stages.errors import ParameterError
from stages.measuring.quality.harness_log import harness_warnings


def test_a_warning_is_told_once_with_its_count_where_there_were_several(logged):
    with harness_warnings():
        for text in ("rare", "often", "often", "often", "Left truncation applied"):
            logging.getLogger("lm_eval").warning(text)
    assert set(logged.messages) == {"lm-eval: often (3 times)", "lm-eval: rare"}


@pytest.mark.parametrize(
    ("level", "text"), [(logging.ERROR, "no such field"), (logging.WARNING, "Label index was not in within range 0..3")]
)
def test_what_makes_a_figure_wrong_is_refused_and_told_all_the_same(logged, level, text):
    def evaluate():
        with harness_warnings() as heard:
            logging.getLogger("lm_eval").log(level, text)
            heard.refuse_errors()

    with pytest.raises(ParameterError, match=text[:12]):
        evaluate()
    assert set(logged.messages) == {f"lm-eval: {text}"}


def test_the_logger_of_lm_eval_is_left_as_it_was():
    logger = logging.getLogger("lm_eval.tasks").parent
    before = logger.level, logger.propagate, list(logger.handlers)
    with harness_warnings() as heard:
        logger.warning("one")
        assert not logger.propagate
        heard.refuse_errors()
    assert (logger.level, logger.propagate, list(logger.handlers)) == before
