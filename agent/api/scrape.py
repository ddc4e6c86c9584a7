"""For Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from agent.api.caller import Store, identify
from agent.api.house import check_sees_all
from agent.scrape import scrape

router = APIRouter(tags=["health"])

EXAMPLE = 'perdure_tasks{status="queued"} 3.0\n'


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": EXAMPLE}}}},
    dependencies=[Depends(identify), Depends(check_sees_all)],
)
async def read_metrics(request: Request, store: Store) -> Response:
    """Metrics as Prometheus text, or OpenMetrics by `Accept`. Needs a key where keys are needed; a read-only one will
    do."""
    body, media_type = await scrape(store, request.headers.get("accept"))
    return Response(body, media_type=media_type)
