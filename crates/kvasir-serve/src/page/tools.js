// Tools that the page runs itself, without asking anybody: a calculator and a clock.

const schema = (name, description, key, what) => ({
  type: "function",
  function: { name, description, parameters: { type: "object", properties: { [key]: { type: "string", description: what } }, required: [key] } },
});

export const OWN = {
  calculator: { tool: schema("calculator", "Evaluate an arithmetic expression", "expression", "The expression"), run: ({ expression }) => String(calculate(String(expression))) },
  clock: { tool: schema("clock", "Get the time in a city", "city", "The city"), run: ({ city }) => timeIn(String(city)) },
};

/** The value of an expression with + - * / % ^, brackets and decimal numbers. */
export function calculate(text) {
  const tokens = text.replaceAll("×", "*").replaceAll("÷", "/").replaceAll("−", "-").replaceAll("**", "^").match(/\d+(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+|\S/gi) ?? [];
  let at = 0;
  const take = (...wanted) => (wanted.includes(tokens[at]) ? tokens[at++] : null);
  const sum = () => {
    let value = product();
    for (let op; (op = take("+", "-")); ) value = op === "+" ? value + product() : value - product();
    return value;
  };
  const product = () => {
    let value = signed();
    for (let op; (op = take("*", "/", "%")); ) {
      const by = signed();
      value = op === "*" ? value * by : op === "/" ? value / by : value % by;
    }
    return value;
  };
  const signed = () => (take("-") ? -signed() : take("+") ? signed() : power());
  const power = () => {
    const base = atom();
    return take("^") ? base ** signed() : base;
  };
  const atom = () => {
    if (take("(")) {
      const value = sum();
      if (!take(")")) throw new Error("a bracket is not closed");
      return value;
    }
    const value = Number(tokens[at++] ?? "nothing");
    if (Number.isNaN(value)) throw new Error(`“${tokens[at - 1] ?? "the end"}” is no number`);
    return value;
  };
  const value = sum();
  if (at < tokens.length) throw new Error(`“${tokens[at]}” is one too many`);
  return Number.isInteger(value) ? value : Number(value.toPrecision(12));
}

/** The time in a city that the browser's time zones know. */
function timeIn(city) {
  const wanted = city.trim().toLowerCase().replaceAll(" ", "_").split(",")[0];
  const zones = Intl.supportedValuesOf("timeZone");
  const zone = zones.find((zone) => zone.toLowerCase() === wanted) ?? zones.find((zone) => zone.toLowerCase().endsWith(`/${wanted}`));
  if (!zone && wanted) throw new Error(`no time zone is named after ${city}`);
  return new Intl.DateTimeFormat("en-GB", { timeZone: zone, hour: "2-digit", minute: "2-digit" }).format(new Date());
}
