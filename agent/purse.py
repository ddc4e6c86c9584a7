"""What requests to models use and cost. Counted where the answer comes in, once, at the prices of that moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal

from pydantic_ai._genai_prices import best_effort_price
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from store.types import Purpose, Spent

purse: ContextVar[list[Spent] | None] = ContextVar("perdure_purse", default=None)
"""Where requests that are nobody's answer are counted."""


@contextmanager
def paying(account: list[Spent]) -> Iterator[list[Spent]]:
    """What is asked inside, beside the answer itself, goes on this account."""
    token = purse.set(account)
    try:
        yield account
    finally:
        purse.reset(token)


def spent_on(response: ModelResponse, purpose: Purpose) -> Spent:
    """By the model's own account. A price that the provider states counts; else the price list that came along."""
    usage = response.usage
    cost = usage.cost if usage.cost is not None else _price(response)
    return Spent(
        purpose=purpose,
        model=response.model_name,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=format(cost, "f") if cost is not None else None,
    )


def _price(response: ModelResponse) -> Decimal | None:
    price = best_effort_price(
        response.usage,
        model_name=response.model_name,
        provider_api_url=response.provider_url,
        provider_name=response.provider_name,
        genai_request_timestamp=response.timestamp,
        price_context=response.provider_details,
    )
    return price.total_price if price is not None else None


class Counted(WrapperModel):
    """A model whose answers are put on the account of whoever is paying."""

    def __init__(self, model: Model | str, purpose: Purpose) -> None:
        super().__init__(infer_model(model) if isinstance(model, str) else model)
        self._purpose: Purpose = purpose

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        response = await super().request(messages, model_settings, model_request_parameters)
        account = purse.get()
        if account is not None:
            account.append(spent_on(response, self._purpose))
        return response
