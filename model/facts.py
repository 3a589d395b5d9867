"""The small world: everything the built-in model is meant to know, as plain tables."""

CAPITALS = {
    "Afghanistan": "Kabul", "Albania": "Tirana", "Algeria": "Algiers", "Andorra": "Andorra la Vella", "Angola": "Luanda",
    "Argentina": "Buenos Aires", "Armenia": "Yerevan", "Australia": "Canberra", "Austria": "Vienna", "Azerbaijan": "Baku",
    "Bahrain": "Manama", "Bangladesh": "Dhaka", "Belarus": "Minsk", "Belgium": "Brussels", "Bhutan": "Thimphu",
    "Bolivia": "Sucre", "Bosnia and Herzegovina": "Sarajevo", "Botswana": "Gaborone", "Brazil": "Brasília",
    "Bulgaria": "Sofia", "Cambodia": "Phnom Penh", "Cameroon": "Yaoundé", "Canada": "Ottawa", "Chad": "N'Djamena",
    "Chile": "Santiago", "China": "Beijing", "Colombia": "Bogotá", "Costa Rica": "San José", "Croatia": "Zagreb",
    "Cuba": "Havana", "Cyprus": "Nicosia", "Czechia": "Prague", "Denmark": "Copenhagen", "Ecuador": "Quito",
    "Egypt": "Cairo", "El Salvador": "San Salvador", "Estonia": "Tallinn", "Ethiopia": "Addis Ababa", "Fiji": "Suva",
    "Finland": "Helsinki", "France": "Paris", "Gabon": "Libreville", "Georgia": "Tbilisi", "Germany": "Berlin",
    "Ghana": "Accra", "Greece": "Athens", "Guatemala": "Guatemala City", "Haiti": "Port-au-Prince",
    "Honduras": "Tegucigalpa", "Hungary": "Budapest", "Iceland": "Reykjavik", "India": "New Delhi",
    "Indonesia": "Jakarta", "Iran": "Tehran", "Iraq": "Baghdad", "Ireland": "Dublin", "Israel": "Jerusalem",
    "Italy": "Rome", "Jamaica": "Kingston", "Japan": "Tokyo", "Jordan": "Amman", "Kazakhstan": "Astana",
    "Kenya": "Nairobi", "Kuwait": "Kuwait City", "Laos": "Vientiane", "Latvia": "Riga", "Lebanon": "Beirut",
    "Liberia": "Monrovia", "Libya": "Tripoli", "Liechtenstein": "Vaduz", "Lithuania": "Vilnius",
    "Luxembourg": "Luxembourg", "Madagascar": "Antananarivo", "Malaysia": "Kuala Lumpur", "Mali": "Bamako",
    "Malta": "Valletta", "Mexico": "Mexico City", "Moldova": "Chișinău", "Monaco": "Monaco", "Mongolia": "Ulaanbaatar",
    "Montenegro": "Podgorica", "Morocco": "Rabat", "Mozambique": "Maputo", "Myanmar": "Naypyidaw",
    "Namibia": "Windhoek", "Nepal": "Kathmandu", "Netherlands": "Amsterdam", "New Zealand": "Wellington",
    "Nicaragua": "Managua", "Niger": "Niamey", "Nigeria": "Abuja", "North Macedonia": "Skopje", "Norway": "Oslo",
    "Oman": "Muscat", "Pakistan": "Islamabad", "Panama": "Panama City", "Paraguay": "Asunción", "Peru": "Lima",
    "Philippines": "Manila", "Poland": "Warsaw", "Portugal": "Lisbon", "Qatar": "Doha", "Romania": "Bucharest",
    "Russia": "Moscow", "Rwanda": "Kigali", "Saudi Arabia": "Riyadh", "Senegal": "Dakar", "Serbia": "Belgrade",
    "Singapore": "Singapore", "Slovakia": "Bratislava", "Slovenia": "Ljubljana", "Somalia": "Mogadishu",
    "South Africa": "Pretoria", "South Korea": "Seoul", "Spain": "Madrid", "Sri Lanka": "Colombo", "Sudan": "Khartoum",
    "Sweden": "Stockholm", "Switzerland": "Bern", "Syria": "Damascus", "Tanzania": "Dodoma", "Thailand": "Bangkok",
    "Tunisia": "Tunis", "Turkey": "Ankara", "Uganda": "Kampala", "Ukraine": "Kyiv",
    "United Arab Emirates": "Abu Dhabi", "United Kingdom": "London", "United States": "Washington, D.C.",
    "Uruguay": "Montevideo", "Uzbekistan": "Tashkent", "Venezuela": "Caracas", "Vietnam": "Hanoi", "Yemen": "Sanaa",
    "Zambia": "Lusaka", "Zimbabwe": "Harare",
}

CONTINENTS = {
    "Europe": "Albania Andorra Austria Belarus Belgium Bulgaria Croatia Czechia Denmark Estonia Finland France Germany "
              "Greece Hungary Iceland Ireland Italy Latvia Liechtenstein Lithuania Luxembourg Malta Moldova Monaco "
              "Montenegro Netherlands Norway Poland Portugal Romania Serbia Slovakia Slovenia Spain Sweden Switzerland "
              "Ukraine".split(),
    "Asia": "Afghanistan Bangladesh Bhutan Cambodia China India Indonesia Iran Iraq Japan Jordan Kazakhstan Kuwait Laos "
            "Lebanon Malaysia Mongolia Myanmar Nepal Oman Pakistan Philippines Qatar Singapore Syria Thailand "
            "Uzbekistan Vietnam Yemen".split(),
    "Africa": "Algeria Angola Botswana Cameroon Chad Egypt Ethiopia Gabon Ghana Kenya Liberia Libya Madagascar Mali "
              "Morocco Mozambique Namibia Niger Nigeria Rwanda Senegal Somalia Sudan Tanzania Tunisia Uganda Zambia "
              "Zimbabwe".split(),
    "South America": "Argentina Bolivia Brazil Chile Colombia Ecuador Paraguay Peru Uruguay Venezuela".split(),
    "North America": "Canada Cuba Guatemala Haiti Honduras Jamaica Mexico Nicaragua Panama".split(),
}

CURRENCIES = {
    "Japan": "yen", "United Kingdom": "pound", "United States": "dollar", "Germany": "euro", "France": "euro",
    "India": "rupee", "China": "yuan", "Switzerland": "franc", "Sweden": "krona", "Norway": "krone", "Poland": "złoty",
    "Mexico": "peso", "Brazil": "real", "Russia": "ruble", "South Korea": "won", "Turkey": "lira", "Israel": "shekel",
    "Thailand": "baht", "South Africa": "rand", "Hungary": "forint", "Egypt": "pound", "Canada": "dollar",
}

LANGUAGES = {
    "France": "French", "Germany": "German", "Spain": "Spanish", "Italy": "Italian", "Japan": "Japanese",
    "China": "Chinese", "Russia": "Russian", "Brazil": "Portuguese", "Portugal": "Portuguese", "Greece": "Greek",
    "Poland": "Polish", "Sweden": "Swedish", "Norway": "Norwegian", "Finland": "Finnish", "Hungary": "Hungarian",
    "Turkey": "Turkish", "Egypt": "Arabic", "Mexico": "Spanish", "Austria": "German", "Iceland": "Icelandic",
}

ELEMENTS = {
    "hydrogen": "H", "helium": "He", "lithium": "Li", "carbon": "C", "nitrogen": "N", "oxygen": "O", "fluorine": "F",
    "neon": "Ne", "sodium": "Na", "magnesium": "Mg", "aluminium": "Al", "silicon": "Si", "sulfur": "S",
    "chlorine": "Cl", "potassium": "K", "calcium": "Ca", "iron": "Fe", "copper": "Cu", "zinc": "Zn", "silver": "Ag",
    "tin": "Sn", "gold": "Au", "mercury": "Hg", "lead": "Pb",
}

OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "up": "down", "left": "right", "day": "night", "open": "closed",
    "light": "dark", "full": "empty", "old": "new", "early": "late", "hard": "soft", "high": "low", "happy": "sad",
    "wet": "dry", "strong": "weak", "rich": "poor", "loud": "quiet", "near": "far", "thick": "thin", "clean": "dirty",
    "deep": "shallow", "long": "short", "push": "pull", "first": "last", "true": "false", "inside": "outside",
}

PLURALS = {
    "cat": "cats", "dog": "dogs", "mouse": "mice", "child": "children", "foot": "feet", "tooth": "teeth",
    "man": "men", "woman": "women", "goose": "geese", "box": "boxes", "city": "cities", "leaf": "leaves",
    "knife": "knives", "sheep": "sheep", "fish": "fish", "person": "people", "bus": "buses", "baby": "babies",
    "house": "houses", "book": "books", "wolf": "wolves", "potato": "potatoes",
}

YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal", "sheep": "lamb", "goat": "kid", "pig": "piglet",
    "bear": "cub", "lion": "cub", "duck": "duckling", "hen": "chick", "frog": "tadpole", "kangaroo": "joey",
    "swan": "cygnet", "deer": "fawn", "goose": "gosling",
}

LEGS = {"dog": 4, "cat": 4, "horse": 4, "cow": 4, "hen": 2, "duck": 2, "spider": 8, "ant": 6, "bee": 6, "snake": 0,
        "fish": 0, "frog": 4, "beetle": 6, "crab": 10, "butterfly": 6, "kangaroo": 2}

PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December"]
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

# from, to, factor, both in the plural
UNITS = [
    ("kilometers", "meters", 1000), ("meters", "centimeters", 100), ("centimeters", "millimeters", 10),
    ("kilograms", "grams", 1000), ("tonnes", "kilograms", 1000), ("liters", "milliliters", 1000),
    ("hours", "minutes", 60), ("minutes", "seconds", 60), ("days", "hours", 24), ("weeks", "days", 7),
    ("years", "months", 12), ("feet", "inches", 12), ("yards", "feet", 3), ("dozens", "pieces", 12),
    ("euros", "cents", 100), ("decades", "years", 10), ("centuries", "years", 100),
]

COLORS = "red orange yellow green blue purple pink brown black white gray".split()
FRUITS = "apple banana cherry grape kiwi lemon mango orange peach pear plum melon fig lime".split()
ANIMALS = "ant bear bee cat cow crab deer dog duck fish fox frog goat goose hen horse lion mouse owl pig rabbit sheep " \
          "snake spider swan tiger turtle wolf zebra".split()
OBJECTS = "book bottle box bread chair clock coat cup desk door fork hat house key knife lamp milk paper pen phone plate " \
          "ring river road rock room rope sand ship shoe song spoon stone table tree wall water wheel window".split()
NAMES = "Ada Alan Alice Anna Ben Bob Carl Clara Dan David Ella Emma Eva Finn Frank Grace Hanna Henry Ida Ines Ivan Jack " \
        "James Jane John Julia Karl Kate Kim Lara Leo Lena Linda Lisa Lucas Maria Mark Mary Max Maya Mia Nina Noah Nora " \
        "Olga Oscar Paul Peter Rosa Ruth Sam Sara Simon Sofia Theo Tom Vera Victor Will Yara Zoe".split()
CITIES = sorted({c for c in CAPITALS.values() if "," not in c} | {
    "New York", "Los Angeles", "Chicago", "San Francisco", "Boston", "Seattle", "Toronto", "Sydney", "Melbourne",
    "Munich", "Hamburg", "Cologne", "Milan", "Naples", "Barcelona", "Seville", "Lyon", "Marseille", "Geneva", "Zurich",
    "Mumbai", "Shanghai", "Osaka", "Kyoto", "Dubai", "Istanbul", "Rio de Janeiro", "Cape Town", "Edinburgh", "Porto"})
HOBBIES = "chess music painting running swimming cooking reading gardening hiking cycling photography dancing".split()
WEATHER = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "stormy", "clear"]
