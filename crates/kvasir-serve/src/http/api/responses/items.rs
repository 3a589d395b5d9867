//! Items of stored responses and conversations as the API lists them, and pagination of the lists.

use crate::error::ApiError;
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::app::App;
use crate::http::query::Query;
use crate::work_pool::fair_queue::Cost;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Maximum and default number of items on a page.
const MAX_LIMIT: usize = 100;
const DEFAULT_LIMIT: usize = 20;

/// One page of a list, as `limit`, `order` and `after` of the query select it.
struct Page<'a> {
    limit: usize,
    is_ascending: bool,
    after: Option<&'a str>,
}

impl<'a> Page<'a> {
    fn read(query: &'a Query) -> Result<Self, ApiError> {
        let is_ascending = match query.get("order") {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::param("order", "`order` must be `asc` or `desc`")),
        };
        let limit = query.integer("limit", 1..=MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
        Ok(Self { limit, is_ascending, after: query.get("after") })
    }

    /// The list object of this page of `items`, which are in ascending order.
    fn of(&self, mut items: Vec<Value>) -> Result<Value, ApiError> {
        if !self.is_ascending {
            items.reverse();
        }
        if let Some(after) = self.after {
            let at = items.iter().position(|item| item["id"] == after);
            let at =
                at.ok_or_else(|| ApiError::param("after", "`after` must be the id of an item in the list"))?;
            items.drain(..=at);
        }
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
        Ok(json!({
            "object": "list", "first_id": id(items.first()), "last_id": id(items.last()),
            "has_more": has_more, "data": items,
        }))
    }
}

/// Answers a request for a page of a list, which `list` reads in ascending order.
pub(crate) async fn page_of(
    app: &Arc<App>,
    query: Option<&str>,
    list: impl FnOnce(&Arc<App>) -> Result<Vec<Value>, ApiError> + Send + 'static,
) -> Result<JsonAnswer, ApiError> {
    let query = Query::parse(query);
    query.only(&["limit", "order", "after", "include"], app.rules.unknown_fields)?;
    query.ignore_values("include");
    let answer = app.run_work(Cost::Light, move |app| JsonAnswer::of(&Page::read(&query)?.of(list(app)?)?));
    answer.await
}

/// An input item in the form in which the API lists it: with its type, id and status, and the
/// content of a message as parts.
pub(crate) fn listed(mut item: Value, new_id: impl FnOnce() -> String) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    let is_missing = |fields: &Map<String, Value>, name: &str| fields.get(name).is_none_or(Value::is_null);
    if is_missing(fields, "id") {
        fields.insert("id".into(), new_id().into());
    }
    for (name, value) in [("type", "message"), ("status", "completed")] {
        if is_missing(fields, name) {
            fields.insert(name.into(), value.into());
        }
    }
    if fields["type"] == "message" {
        let is_assistant = fields.get("role").is_some_and(|role| role == "assistant");
        let content = fields.get_mut("content").map(Value::take);
        fields.insert("content".into(), parts(content.unwrap_or_default(), is_assistant));
    }
    item
}

/// Items in the form in which the API lists them; those without an id get a new one.
pub(crate) fn with_ids(app: &App, items: Vec<Value>) -> Vec<Value> {
    let prefix = |item: &Value| match item["type"].as_str() {
        None | Some("message") => "msg",
        Some("reasoning") => "rs",
        Some("function_call") => "fc",
        Some("function_call_output") => "fco",
        _ => "item",
    };
    let new = |item: Value| {
        let prefix = prefix(&item);
        listed(item, || format!("{prefix}_{}", app.new_id()))
    };
    items.into_iter().map(new).collect()
}

/// The content of a message as a list of typed parts.
fn parts(content: Value, is_assistant: bool) -> Value {
    let kind = if is_assistant { "output_text" } else { "input_text" };
    let part = |mut fields: Map<String, Value>| {
        if fields.get("type").is_none_or(|own| own == "text") {
            fields.insert("type".into(), kind.into());
        }
        if is_assistant && fields["type"] == "output_text" {
            fields.entry("annotations").or_insert(json!([]));
        }
        Value::Object(fields)
    };
    match content {
        Value::String(text) => json!([part(Map::from_iter([
            ("type".to_owned(), kind.into()),
            ("text".to_owned(), text.into()),
        ]))]),
        Value::Array(parts) => parts
            .into_iter()
            .map(|one| match one {
                Value::Object(fields) => part(fields),
                other => other,
            })
            .collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_listed_in_the_form_of_the_api() {
        let text = |kind: &str, text: &str| json!({"type": kind, "text": text});
        let annotated = |text: &str| json!({"type": "output_text", "text": text, "annotations": []});
        for (role, content, expected) in [
            ("user", json!("hi"), json!([text("input_text", "hi")])),
            ("system", json!([text("text", "hi")]), json!([text("input_text", "hi")])),
            ("user", json!([text("input_text", "hi")]), json!([text("input_text", "hi")])),
            ("assistant", json!("hi"), json!([annotated("hi")])),
            ("assistant", json!([text("output_text", "hi")]), json!([annotated("hi")])),
        ] {
            let item = listed(json!({"role": role, "content": content, "id": null}), || "item_0_r".into());
            let expected = json!({
                "type": "message", "role": role, "content": expected, "id": "item_0_r", "status": "completed",
            });
            assert_eq!(item, expected);
        }
        let call = json!({"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}", "status": "incomplete"});
        assert_eq!(listed(call.clone(), || "item_1_r".into()), call);
    }

    #[test]
    fn pages_list_each_item_once() {
        let items: Vec<Value> = (0..45).map(|i| json!({"id": i.to_string()})).collect();
        for (order, expected) in [("", (0..45).rev().collect::<Vec<_>>()), ("&order=asc", (0..45).collect())]
        {
            let (mut seen, mut after) = (Vec::new(), String::new());
            loop {
                let query = Query::parse(Some(&format!("limit=20{order}{after}")));
                let page = Page::read(&query).unwrap().of(items.clone()).unwrap();
                let data = page["data"].as_array().unwrap();
                assert_eq!(
                    (&page["first_id"], &page["last_id"]),
                    (&data[0]["id"], &data.last().unwrap()["id"])
                );
                seen.extend(data.iter().map(|item| item["id"].as_str().unwrap().parse::<i32>().unwrap()));
                after = format!("&after={}", page["last_id"].as_str().unwrap());
                if page["has_more"] == false {
                    break;
                }
            }
            assert_eq!(seen, expected);
        }
        let empty = Page::read(&Query::parse(Some("after=0"))).unwrap().of(items.clone()).unwrap();
        assert_eq!((&empty["data"], &empty["last_id"]), (&json!([]), &Value::Null));
        let default = Page::read(&Query::parse(None)).unwrap().of(items).unwrap();
        assert_eq!(default["data"].as_array().unwrap().len(), DEFAULT_LIMIT);
    }

    #[test]
    fn errors_name_the_invalid_parameter() {
        for (query, param) in
            [("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order")]
        {
            let query = Query::parse(Some(query));
            assert_eq!(Page::read(&query).map(drop).unwrap_err().param.as_deref(), Some(param));
        }
        let query = Query::parse(Some("after=z"));
        let error = Page::read(&query).unwrap().of(vec![json!({"id": "a"})]).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some("after")));
    }
}
