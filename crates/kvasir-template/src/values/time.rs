//! `strftime` in UTC for a time given by the caller, in the proleptic Gregorian calendar.

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Moment {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    /// 0 is Monday.
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    fn new(seconds: i64) -> Self {
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let weekday = (days + 3).rem_euclid(7) as usize; // 1970-01-01 was a Thursday
        let (cycles, mut left) = ((days + 719_162).div_euclid(146_097), (days + 719_162).rem_euclid(146_097));
        let mut year = 1 + cycles * 400;
        while left >= 365 + i64::from(leap(year)) {
            left -= 365 + i64::from(leap(year));
            year += 1;
        }
        let (day_of_year, mut month) = (left + 1, 0);
        while left >= month_days(year, month) {
            left -= month_days(year, month);
            month += 1;
        }
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        Self { year, month, day: left + 1, day_of_year, weekday, hour, minute, second }
    }
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn month_days(year: i64, month: usize) -> i64 {
    match month {
        1 => 28 + i64::from(leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Formats Unix time `seconds` in UTC, as Python's `strftime` does.
pub fn strftime(format: &str, seconds: i64) -> String {
    // Python's datetime range: years 1 to 9999.
    let moment = Moment::new(seconds.clamp(-62_135_596_800, 253_402_300_799));
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('-') => {
                if let Some(field) = chars.next() {
                    let padded = one(field, &moment);
                    let bare = padded.trim_start_matches(['0', ' ']);
                    out.push_str(if bare.is_empty() { "0" } else { bare });
                }
            }
            Some(field) => out.push_str(&one(field, &moment)),
            None => out.push('%'),
        }
    }
    out
}

fn one(field: char, m: &Moment) -> String {
    let (day, month) = (DAYS[m.weekday], MONTHS[m.month]);
    let twelve = if m.hour % 12 == 0 { 12 } else { m.hour % 12 };
    let number = m.month + 1;
    match field {
        'Y' => m.year.to_string(),
        'y' => format!("{:02}", m.year % 100),
        'C' => format!("{:02}", m.year / 100),
        'm' => format!("{number:02}"),
        'B' => month.into(),
        'b' | 'h' => month[..3].into(),
        'd' => format!("{:02}", m.day),
        'e' => format!("{:2}", m.day),
        'j' => format!("{:03}", m.day_of_year),
        'A' => day.into(),
        'a' => day[..3].into(),
        'u' => (m.weekday + 1).to_string(),
        'w' => ((m.weekday + 1) % 7).to_string(),
        'H' => format!("{:02}", m.hour),
        'I' => format!("{twelve:02}"),
        'M' => format!("{:02}", m.minute),
        'S' => format!("{:02}", m.second),
        'f' => "000000".into(),
        'p' => if m.hour < 12 { "AM" } else { "PM" }.into(),
        'D' | 'x' => format!("{number:02}/{:02}/{:02}", m.day, m.year % 100),
        'F' => format!("{}-{number:02}-{:02}", m.year, m.day),
        'T' | 'X' => format!("{:02}:{:02}:{:02}", m.hour, m.minute, m.second),
        'R' => format!("{:02}:{:02}", m.hour, m.minute),
        'r' => {
            format!("{twelve:02}:{:02}:{:02} {}", m.minute, m.second, if m.hour < 12 { "AM" } else { "PM" })
        }
        'c' => format!(
            "{} {} {:2} {:02}:{:02}:{:02} {}",
            &day[..3],
            &month[..3],
            m.day,
            m.hour,
            m.minute,
            m.second,
            m.year
        ),
        'n' => "\n".into(),
        't' => "\t".into(),
        'z' | 'Z' => String::new(), // a naive datetime has no time zone
        '%' => "%".into(),
        other => format!("%{other}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::values::time::strftime;

    #[test]
    fn dates_follow_the_gregorian_calendar() {
        assert_eq!(strftime("%d %b %Y", 0), "01 Jan 1970");
        assert_eq!(strftime("%A, %Y-%m-%d %H:%M:%S %j", 1_709_210_096), "Thursday, 2024-02-29 12:34:56 060");
        assert_eq!(strftime("%B %-d, %y %I %p %%", 1_735_689_599), "December 31, 24 11 PM %");
        assert_eq!(strftime("%F", -1), "1969-12-31");
    }
}
