// Talking to the server. Every failure becomes an ApiError with the field that the server names, if it names one.

import { eventData } from "./sse.js";
import { apiKey } from "./store.js";

const CUT = "The connection ended before the answer did.";

export class ApiError extends Error {
  // status 0: no answer at all.
  constructor(message, { status = 0, field = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.field = field;
    this.retryAfter = retryAfter;
  }
}

function headers() {
  const key = apiKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function checked(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw toError(body?.error, response);
}

function toError(error, response = null) {
  const status = response?.status ?? 0;
  return new ApiError(error?.message ?? `The server answered with status ${status}.`, {
    status,
    field: error?.param ?? null,
    retryAfter: response?.headers.get("Retry-After") ?? null,
  });
}

export async function listModels() {
  const response = await checked("v1/models", { headers: headers() });
  return (await response.json()).data;
}

export async function metricsText() {
  const response = await checked("metrics", { headers: headers() });
  return response.text();
}

// As eventData, with a connection that breaks as an ApiError.
async function* received(response) {
  try {
    yield* eventData(response.body);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(CUT);
  }
}

// Yields the chunks of a streamed chat. `body` is JSON text. A stream that ends without its end mark is an error: what
// came is not the whole answer.
export async function* streamChat(body, signal) {
  const response = await checked("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body,
    signal,
  });
  for await (const data of received(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw toError(chunk.error);
    yield chunk;
  }
  throw new ApiError(CUT);
}
