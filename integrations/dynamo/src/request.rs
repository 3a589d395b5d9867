//! Converts Dynamo's preprocessed request to the engine's parameters. Unsupported fields are
//! refused by name.

use crate::failure::invalid;
use dynamo_backend_common::{DynamoError, GuidedDecodingOptions, PreprocessedRequest};
use kvasir::{Model, Params, Shape};
use std::iter;

/// The parameters of a request, and the constraint of its answer, which the caller must compile.
pub(crate) fn parameters(
    request: &PreprocessedRequest,
    model: &Model,
) -> Result<(Params, Option<Shape>), DynamoError> {
    if let Some(field) = unsupported(request) {
        return Err(invalid(format!("`{field}` is not supported by Kvasir")));
    }
    let (stop, sampling, output) =
        (&request.stop_conditions, &request.sampling_options, &request.output_options);
    let defaults = model.default_params().map_err(invalid)?;
    let mut params = defaults.clone();
    params.max_tokens = stop.max_tokens.unwrap_or(defaults.max_tokens);
    params.min_tokens = stop.min_tokens.unwrap_or(0).min(params.max_tokens);
    params.ignore_eos = stop.ignore_eos.unwrap_or(false);
    let hidden = stop.stop_token_ids_hidden.iter().flatten();
    params.eos = request.eos_token_ids.iter().chain(hidden).copied().collect();
    if params.eos.is_empty() {
        params.eos.clone_from(&model.eos);
    }
    let visible = stop.stop_token_ids_visible.iter().flatten();
    params.stop_ids = stop.stop_token_ids.iter().flatten().chain(visible).copied().collect();
    let target = &mut params.sampling;
    let set = |field: &mut f32, value: Option<f32>| *field = value.unwrap_or(*field);
    set(&mut target.temperature, sampling.temperature);
    set(&mut target.top_p, sampling.top_p);
    set(&mut target.min_p, sampling.min_p);
    set(&mut target.repetition_penalty, sampling.repetition_penalty);
    set(&mut target.presence_penalty, sampling.presence_penalty);
    set(&mut target.frequency_penalty, sampling.frequency_penalty);
    if let Some(top_k) = sampling.top_k {
        // Dynamo's -1 and Kvasir's 0 both turn top-k off.
        target.top_k = u32::try_from(top_k).unwrap_or(0);
    }
    // Requests without a seed must sample different tokens.
    target.seed = sampling.seed.map_or_else(random_seed, |seed| seed as u64);
    target.logprobs = output.logprobs;
    params.check().map_err(invalid)?;
    let shape = sampling.guided_decoding.as_ref().map(shape).transpose()?.flatten();
    Ok((params, shape))
}

/// The first field of the request that the engine does not support.
fn unsupported(request: &PreprocessedRequest) -> Option<&'static str> {
    let (sampling, output) = (&request.sampling_options, &request.output_options);
    let fields = [
        (request.prompt_embeds.is_some(), "prompt_embeds"),
        (request.multi_modal_data.is_some(), "multi_modal_data"),
        (request.prefill_result.is_some(), "prefill_result"),
        (sampling.n.is_some_and(|n| n > 1), "n > 1"),
        (sampling.best_of.is_some_and(|n| n > 1), "best_of > 1"),
        (sampling.use_beam_search == Some(true), "use_beam_search"),
        (output.prompt_logprobs.is_some(), "prompt_logprobs"),
        (request.stop_conditions.max_thinking_tokens.is_some(), "max_thinking_tokens"),
    ];
    fields.into_iter().find_map(|(is_set, field)| is_set.then_some(field))
}

/// The constraint of guided decoding; an error if there is more than one.
fn shape(guided: &GuidedDecodingOptions) -> Result<Option<Shape>, DynamoError> {
    if guided.structural_tag.is_some() {
        return Err(invalid("`structural_tag` is not supported by Kvasir"));
    }
    if guided.whitespace_pattern.is_some() {
        return Err(invalid("`whitespace_pattern` is not supported by Kvasir"));
    }
    let schema = match &guided.json {
        Some(serde_json::Value::String(text)) => {
            let schema = serde_json::from_str(text);
            Some(schema.map_err(|error| invalid(format!("guided_decoding.json: {error}")))?)
        }
        schema => schema.clone(),
    };
    let shapes = iter::empty()
        .chain(schema.map(Shape::JsonSchema))
        .chain(guided.regex.clone().map(Shape::Regex))
        .chain(guided.choice.clone().map(Shape::Choice))
        .chain(guided.grammar.clone().map(Shape::Grammar));
    let mut shapes: Vec<Shape> = shapes.collect();
    let shape = shapes.pop();
    if shapes.is_empty() {
        Ok(shape)
    } else {
        Err(invalid("guided_decoding: more than one constraint; set only one"))
    }
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_backend_common::{OutputOptions, SamplingOptions, StopConditions};
    use kvasir::{Kvasir, Options};
    use std::sync::Arc;

    fn model() -> Arc<Model> {
        Kvasir::built_in(Options::default()).unwrap().model().clone()
    }

    fn request(change: impl FnOnce(&mut PreprocessedRequest)) -> PreprocessedRequest {
        let mut request = PreprocessedRequest::builder()
            .model("m".to_owned())
            .token_ids(vec![1, 2, 3])
            .stop_conditions(StopConditions::default())
            .sampling_options(SamplingOptions::default())
            .output_options(OutputOptions::default())
            .build()
            .unwrap();
        change(&mut request);
        request
    }

    #[test]
    fn fields_are_converted_to_parameters() {
        let request = request(|request| {
            request.stop_conditions.max_tokens = Some(9);
            request.stop_conditions.min_tokens = Some(20);
            request.stop_conditions.stop_token_ids = Some(vec![5]);
            request.stop_conditions.stop_token_ids_hidden = Some(vec![6]);
            request.sampling_options.temperature = Some(0.5);
            request.sampling_options.top_k = Some(-1);
            request.sampling_options.seed = Some(-1);
            request.output_options.logprobs = Some(2);
            request.eos_token_ids = vec![7];
        });
        let (params, shape) = parameters(&request, &model()).unwrap();
        assert_eq!((params.max_tokens, params.min_tokens), (9, 9));
        assert_eq!((params.eos, params.stop_ids), (vec![7, 6], vec![5]));
        let sampling = params.sampling;
        assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.5, 0, u64::MAX));
        assert_eq!((sampling.logprobs, shape), (Some(2), None));
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        type Change = fn(&mut PreprocessedRequest);
        let cases: [(Change, &str); 5] = [
            (|request| request.sampling_options.n = Some(2), "n > 1"),
            (|request| request.sampling_options.temperature = Some(f32::NAN), "temperature"),
            (|request| request.output_options.prompt_logprobs = Some(1), "prompt_logprobs"),
            (|request| request.prompt_embeds = Some("x".into()), "prompt_embeds"),
            (
                |request| {
                    let both = GuidedDecodingOptions {
                        regex: Some("a".into()),
                        grammar: Some("b".into()),
                        ..GuidedDecodingOptions::default()
                    };
                    request.sampling_options.guided_decoding = Some(both);
                },
                "more than one constraint",
            ),
        ];
        let model = model();
        for (change, name) in cases {
            let error = parameters(&request(change), &model).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
