use super::{Caller, listen::Patience};
use crate::{
    ApiError,
    aside::{LONG, aside},
    request::parse_body,
};
use axum::{
    body::{Body, BodyDataStream, Bytes},
    extract::Request,
    http::{HeaderMap, header},
};
use futures_util::StreamExt;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

/// Largest body that is read.
const MAX_BODY: usize = 32 << 20;

/// Bytes of bodies that are held at once, whoever sends them; what comes beyond is turned away.
const MAX_HELD: usize = 512 << 20;
/// Bytes that they are counted in.
const UNIT: usize = 64 << 10;
static HELD: Semaphore = Semaphore::const_new(MAX_HELD / UNIT);

/// Times that a client may take as long for a whole body as for its next piece.
const PIECES: u32 = 10;

/// How much of a larger body is taken off the wire before the connection closes on its sender.
const MAX_DROPPED: usize = 8 * MAX_BODY;

/// The JSON object that a request carries, and who sent it.
pub(super) async fn read_body(request: Request) -> Result<(u64, Map<String, Value>), ApiError> {
    let (head, body) = request.into_parts();
    let key = head.extensions.get::<Caller>().map_or(0, |caller| caller.0);
    json_type(&head.headers)?;
    let patience = head.extensions.get::<Patience>().map_or(Duration::MAX, |patience| patience.0);
    let whole = timeout(patience.saturating_mul(PIECES), body_bytes(&head.headers, body, patience));
    let (bytes, _room) = whole.await.map_err(|_| ApiError::too_slow())??;
    let parse = || parse_body(&bytes);
    Ok((key, if bytes.len() < LONG { parse() } else { aside(parse) }?))
}

/// Room that a body takes while it is read.
type Room = Option<SemaphorePermit<'static>>;

/// Makes the room as large as `bytes` take.
fn make_room(room: &mut Room, bytes: usize) -> Result<(), ApiError> {
    let have = room.as_ref().map_or(0, SemaphorePermit::num_permits);
    let more = bytes.div_ceil(UNIT).saturating_sub(have) as u32;
    let full = |_| ApiError::unavailable("too many large requests are being read; try again");
    let more = HELD.try_acquire_many(more).map_err(full)?;
    match room {
        Some(room) => room.merge(more),
        None => *room = Some(more),
    }
    Ok(())
}

/// The whole body. One that is too long is refused as soon as that is known.
async fn body_bytes(
    headers: &HeaderMap,
    body: Body,
    patience: Duration,
) -> Result<(Vec<u8>, Room), ApiError> {
    let promised = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let mut pieces = body.into_data_stream();
    let (mut bytes, mut room) = (Vec::new(), None);
    if promised.unwrap_or(0) <= MAX_BODY {
        loop {
            let Some(piece) = next_piece(&mut pieces, patience).await? else { return Ok((bytes, room)) };
            if bytes.len() + piece.len() > MAX_BODY {
                break;
            }
            make_room(&mut room, bytes.len() + piece.len())?;
            bytes.extend_from_slice(&piece);
        }
    }
    // Who asks before it sends gets the answer instead.
    if !headers.contains_key(header::EXPECT) {
        tokio::spawn(drop_rest(pieces, patience));
    }
    Err(ApiError::too_large(MAX_BODY))
}

async fn next_piece(pieces: &mut BodyDataStream, patience: Duration) -> Result<Option<Bytes>, ApiError> {
    let piece = timeout(patience, pieces.next()).await.map_err(|_| ApiError::too_slow())?;
    piece.transpose().map_err(|error| ApiError::body(format!("the body could not be read: {error}")))
}

/// Takes the rest of a refused body off the wire: a client that is still writing when its connection closes never sees the answer.
async fn drop_rest(mut pieces: BodyDataStream, patience: Duration) {
    let mut dropped = 0;
    while let Ok(Some(piece)) = next_piece(&mut pieces, patience).await {
        dropped += piece.len();
        if dropped > MAX_DROPPED {
            return;
        }
    }
}

/// Plain JSON, not packed: what unpacks to more than it weighs would pass by the limit on bodies.
fn json_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let main = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    let wrong = |why| Err(ApiError { status: 415, ..ApiError::body(why) });
    if !matches!(text(header::CONTENT_ENCODING), "" | "identity") {
        return wrong("the body must not be packed");
    }
    match main.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => wrong("the content type must be application/json"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_take_room_together_and_give_it_back() {
        let all = MAX_HELD / UNIT;
        let (mut one, mut other) = (None, None);
        make_room(&mut one, 1).unwrap();
        make_room(&mut one, UNIT).unwrap();
        assert_eq!(HELD.available_permits(), all - 1);
        make_room(&mut one, MAX_HELD - UNIT).unwrap();
        assert_eq!(make_room(&mut other, UNIT + 1).unwrap_err().status, 503);
        make_room(&mut other, UNIT).unwrap();
        assert_eq!(HELD.available_permits(), 0);
        drop((one, other));
        assert_eq!(HELD.available_permits(), all);
    }
}
