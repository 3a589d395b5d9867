//! Number formats of reports.

/// Formats with three significant digits; below 1 with two decimals.
pub(crate) fn three_digits(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 => grouped(x.round() as u64),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// Formats with thousands separators.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}
