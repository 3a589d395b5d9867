//! Default sampling parameters from a model's `generation_config.json`.

use crate::error::Error;
use crate::opened::OpenedModel;
use kvasir_sample::Sampling;
use serde_json::Value as Json;

impl OpenedModel {
    /// Default sampling: the model's `generation_config.json`, else temperature 1 over the full
    /// vocabulary, as API clients expect. Invalid values are rejected.
    pub fn sampling_defaults(&self) -> Result<Sampling, Error> {
        self.generation_config().map_or(Ok(Self::plain_sampling()), defaults)
    }

    /// Cap on answer tokens from `generation_config.json`.
    pub fn max_new_tokens(&self) -> Result<Option<u32>, Error> {
        self.generation_config().map_or(Ok(None), max_new_tokens)
    }

    /// Default sampling without a generation config.
    pub fn plain_sampling() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::default() }
    }
}

fn number(config: &Json, key: &str, fits: fn(f64) -> bool) -> Result<Option<f64>, Error> {
    let Some(value) = config.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    match value.as_f64().filter(|number| fits(*number)) {
        Some(number) => Ok(Some(number)),
        None => Err(Error::invalid(
            "generation_config",
            format!(
                "`{key}` is `{value}` in generation_config.json, which is not supported; `none` ignores the file"
            ),
        )),
    }
}

fn max_new_tokens(config: &Json) -> Result<Option<u32>, Error> {
    let most = number(config, "max_new_tokens", |n| n.fract() == 0.0 && (1.0..=4e9).contains(&n))?;
    Ok(most.map(|most| most as u32))
}

fn defaults(config: &Json) -> Result<Sampling, Error> {
    let mut sampling = OpenedModel::plain_sampling();
    let number = |key: &str, fits: fn(f64) -> bool| {
        number(config, key, fits).map(|found| found.map(|number| number as f32))
    };
    let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
    set(&mut sampling.temperature, number("temperature", |t| (0.0..=100.0).contains(&t))?);
    set(&mut sampling.top_p, number("top_p", |p| (0.0..=1.0).contains(&p))?);
    set(&mut sampling.min_p, number("min_p", |p| (0.0..=1.0).contains(&p))?);
    set(&mut sampling.repetition_penalty, number("repetition_penalty", |p| p > 0.0 && p <= 100.0)?);
    set(&mut sampling.presence_penalty, number("presence_penalty", |p| p.abs() <= 100.0)?);
    set(&mut sampling.frequency_penalty, number("frequency_penalty", |p| p.abs() <= 100.0)?);
    let top_k = number("top_k", |k| k.fract() == 0.0 && (-1.0..=1e9).contains(&k))?;
    sampling.top_k = top_k.map_or(0, |k| k.max(0.0) as u32);
    Ok(sampling)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn generation_config_sets_only_its_own_fields() {
        let file =
            json!({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": true, "eos_token_id": 3});
        let want = Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, ..Sampling::default() };
        assert_eq!(defaults(&file).ok(), Some(want));
        let plain = Sampling { temperature: 1.0, ..Sampling::default() };
        assert_eq!(defaults(&json!({"top_k": -1, "top_p": null})).ok(), Some(plain));
    }

    #[test]
    fn max_new_tokens_must_be_an_integer() {
        assert_eq!(max_new_tokens(&json!({"max_new_tokens": 2048})).ok(), Some(Some(2048)));
        assert_eq!(max_new_tokens(&json!({"max_new_tokens": null})).ok(), Some(None));
        for bad in [json!(0), json!(1.5), json!("9"), json!(1e12)] {
            let error = max_new_tokens(&json!({"max_new_tokens": bad})).err().map(|error| error.to_string());
            assert!(error.is_some_and(|error| error.contains("max_new_tokens")));
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (key, value) in [
            ("temperature", json!(-1)),
            ("temperature", json!("hot")),
            ("top_p", json!(-0.1)),
            ("top_k", json!(1.5)),
            ("repetition_penalty", json!(0)),
        ] {
            let error =
                defaults(&json!({key: value})).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(key), "{error}");
        }
    }
}
