//! Query parameters of a URL. Every error names the parameter.

use crate::context::ignored_fields::UnknownFields;
use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use std::ops::RangeInclusive;

/// The parameters of one request in their order; a name may occur several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the text behind the `?`. `NAME[]`, which some clients send for lists, is `NAME`.
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let parameter = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name);
            (name.strip_suffix("[]").map(str::to_owned).unwrap_or(name), decode(value))
        };
        Self(pairs.map(parameter).collect())
    }

    /// The first value of a parameter; `None` if it is absent or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        value.filter(|value| !value.is_empty())
    }

    /// A boolean parameter, by default false.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::param(name, format!("`{name}` must be true or false"))),
        }
    }

    /// An integer parameter within bounds.
    pub(crate) fn integer(
        &self,
        name: &str,
        bounds: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        let (low, high) = (bounds.start(), bounds.end());
        let wrong = || ApiError::param(name, format!("`{name}` must be a whole number from {low} to {high}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// Records or rejects parameters that are not listed.
    pub(crate) fn only(&self, names: &[&str], rule: UnknownFields) -> Result<(), ApiError> {
        let ignored = RequestContext::current().ignored.with_rule(rule);
        let mut unknown = self.0.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        unknown.try_for_each(|(name, _)| ignored.unknown(name))
    }

    /// Records the values of a parameter as ignored.
    pub(crate) fn ignore_values(&self, name: &str) {
        let ignored = &RequestContext::current().ignored;
        let values = self.0.iter().filter(|(own, _)| own == name);
        values.for_each(|(_, value)| ignored.record(&format!("{name}.{value}")));
    }
}

/// Decodes `+` and `%XX`. Bytes that are no UTF-8 become replacement characters.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let escaped = behind.get(..2).filter(|_| *first == b'%').and_then(|digits| {
            let digit = |byte: u8| (byte as char).to_digit(16);
            Some((digit(digits[0])? * 16 + digit(digits[1])?) as u8)
        });
        bytes.push(match (escaped, first) {
            (Some(byte), _) => byte,
            (None, b'+') => b' ',
            (None, byte) => *byte,
        });
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query = Query::parse(Some("a=1%2C2+3&b[]=x&b%5B%5D=y&c&d=%zz%&=&%C3%A4=%ff"));
        let pairs: Vec<_> = query.0.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected =
            [("a", "1,2 3"), ("b", "x"), ("b", "y"), ("c", ""), ("d", "%zz%"), ("", ""), ("ä", "\u{fffd}")];
        assert_eq!(pairs, expected);
        assert_eq!((query.get("b"), query.get("c"), query.get("e")), (Some("x"), None, None));
        assert_eq!(Query::parse(None), Query::default());
    }

    #[test]
    fn values_have_their_type() {
        let query = Query::parse(Some("yes=true&no=false&one=1&word=x"));
        assert_eq!(
            (query.flag("yes"), query.flag("no"), query.flag("none")),
            (Ok(true), Ok(false), Ok(false))
        );
        assert_eq!(query.integer("one", 1..=2), Ok(Some(1)));
        assert_eq!(query.integer("one", 2..=3).unwrap_err().param.as_deref(), Some("one"));
        assert_eq!(query.integer("word", 0..=9).unwrap_err().param.as_deref(), Some("word"));
        assert_eq!(query.flag("word").unwrap_err().param.as_deref(), Some("word"));
    }
}
