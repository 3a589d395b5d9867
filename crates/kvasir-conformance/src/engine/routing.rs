//! Replays data-parallel routing: load balancing over replicas, and coalescing of delayed prefills.

use crate::case::{Case, CaseError};
use crate::compare::compare;
use crate::engine::{about, list};
use crate::outcome::Outcome;
use kvasir_engine::{
    Charge, Coalescer, Coalescing, Load, LocalState, ReplicaState, Route, RouteRequest, Router, RouterConfig,
};
use serde_json::{Value, json};

/// `atom.dp_load_balance`: the replica chosen for each request.
pub(crate) fn load_balance(case: &Case) -> Result<Outcome, CaseError> {
    route(case).map_err(about(case))
}

fn route(case: &Case) -> Result<Outcome, String> {
    let given = case.body.get("given").ok_or("field `given` is missing")?;
    let expected = case.body.get("expected").ok_or("field `expected` is missing")?;
    let ranks = given["ranks"]
        .as_u64()
        .filter(|ranks| (1..=4096).contains(ranks))
        .ok_or("`ranks` is out of range")?;
    let weight = given["request_weight"].as_u64().unwrap_or(0);
    let route = match given["strategy"].as_str() {
        Some("round_robin") => Route::RoundRobin,
        Some("least_tokens") => Route::LeastTokens,
        Some("least_requests") | None => Route::LeastRequests,
        Some(other) => return Err(format!("unknown strategy `{other}`")),
    };
    let start = |key: &str, i: usize| given[key][i].as_u64().unwrap_or(0);
    let loads =
        (0..ranks as usize).map(|i| Load { requests: start("in_flight", i), tokens: start("tokens", i) });
    let config = RouterConfig { request_weight: weight, ..RouterConfig::new(route) };
    let mut router = Router::with_loads(config, loads.collect());
    let requests = list(given, "requests")?;
    let size = |request: &Value| request.as_u64().or_else(|| request["tokens"].as_u64()).unwrap_or(1);
    let rank = |request: &Value| request["rank"].as_u64().map(|rank| rank as usize);
    // The recorded cases give token counts, not prompts.
    let request = |request: &Value| RouteRequest {
        tokens: size(request),
        requested: rank(request),
        ..RouteRequest::default()
    };
    let group: Vec<RouteRequest<'_>> = requests.iter().map(request).collect();
    let gone = given["fail_rank"].as_u64();
    let sent = router.send_all(
        &group,
        |_, charge| {
            if gone == Some(charge.replica() as u64) { Err(()) } else { Ok(()) }
        },
    );
    let (charges, error) = match sent {
        Ok((charges, failed)) => (charges, failed.is_some()),
        Err(_) => (Vec::new(), true),
    };
    let picks: Vec<usize> = charges.iter().map(Charge::replica).collect();
    if given.get("then").is_some() {
        // A `Charge` is consumed by its release, so a double release cannot be expressed.
        charges.into_iter().for_each(|charge| router.release(charge));
    }
    let requests: Vec<u64> = router.loads().iter().map(|load| load.requests).collect();
    let tokens: Vec<u64> = router.loads().iter().map(|load| load.tokens).collect();
    let mut got = json!({ "rank": picks.first(), "ranks": picks, "in_flight": requests, "tokens": tokens, "error": error });
    if let Some(sentence) = expected["tokens"].as_str() {
        // Recorded as the sentence "A on the first, B on the other".
        let numbers: Vec<u64> = sentence.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        got["tokens"] = json!(if numbers == tokens { sentence } else { "other tokens" });
    }
    Ok(compare("end", expected, &got).err().map_or(Outcome::Passed, Outcome::Failed))
}

/// `atom.prefill_delayer`: when delayed prefills are released.
pub(crate) fn prefill_delayer(case: &Case) -> Result<Outcome, CaseError> {
    coalesce(case).map_err(about(case))
}

fn coalesce(case: &Case) -> Result<Outcome, String> {
    let given = case.body.get("given").ok_or("field `given` is missing")?;
    let expected = case.body.get("expected").ok_or("field `expected` is missing")?;
    let mut config = given["config"].clone();
    if let Some(map) = config.as_object_mut() {
        map.remove("ranks");
    }
    let rules: Coalescing = serde_json::from_value(config).map_err(|error| format!("`config`: {error}"))?;
    let mut coalescer = Coalescer::new(rules);
    let mut allow = Vec::new();
    for call in list(given, "calls")? {
        let of = |key: &str| call.get(key).unwrap_or(&given["call_defaults"][key]);
        let replica = |state: &dyn Fn(&str) -> Value| ReplicaState {
            prefillable: state("prefillable").as_bool().unwrap_or(true),
            pending_tokens: state("pending")
                .as_u64()
                .or_else(|| state("pending_tokens").as_u64())
                .unwrap_or(0),
            running_decode: state("running_decode").as_u64().unwrap_or(0),
        };
        let mut replicas = vec![replica(&|key| of(key).clone())];
        match of("sibling") {
            Value::String(text) if text == "not prefillable" => {
                let running_decode = of("running_decode").as_u64().unwrap_or(0);
                replicas.push(ReplicaState { prefillable: false, pending_tokens: 0, running_decode });
            }
            Value::Object(sibling) => {
                replicas.push(replica(&|key| sibling.get(key).cloned().unwrap_or_default()))
            }
            _ => {}
        }
        let local = LocalState {
            kv_usage: of("kv_usage").as_f64().unwrap_or(0.0),
            has_partial: of("has_partial").as_bool().unwrap_or(false),
            oldest_age_ms: of("oldest_age_ms").as_f64().unwrap_or(0.0),
        };
        allow.push(coalescer.allows(&replicas, local));
    }
    Ok(compare("calls", expected, &json!({ "allow": allow })).err().map_or(Outcome::Passed, Outcome::Failed))
}
