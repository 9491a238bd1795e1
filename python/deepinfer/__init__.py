"""DeepSeek-V4.1-Flash inference on CPUs and GPUs.

from deepinfer import LLM, SamplingParams

llm = LLM()                                            # the built-in tiny model
for output in llm.generate(["Once upon a time"], SamplingParams(temperature=0, max_tokens=40)):
    print(output.outputs[0].text)
"""

from deepinfer.llm import LLM, Tokenizer
from deepinfer.outputs import CompletionOutput, RequestOutput
from deepinfer.sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "Tokenizer"]
