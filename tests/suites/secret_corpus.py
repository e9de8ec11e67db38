"""Secrets made up by a seed, in the form of their families and in the places where people leave them, each labelled;
and text that has none though it looks like it. Nothing here ever opened anything.
"""

import base64
import hashlib
import json
import random
import string
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent.parent / "data" / "secrets"
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
B64URL = string.ascii_letters + string.digits + "-_"
B64 = string.ascii_letters + string.digits + "+/"
HEX = "0123456789abcdef"
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"

Make = Callable[[random.Random], str]


@dataclass(frozen=True)
class Sample:
    """``secret`` stands in ``text``, once; ``family`` is the rule that is to find it, ``place`` where it stands."""

    family: str
    place: str
    text: str
    secret: str


def _of(rng: random.Random, alphabet: str, count: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(count))


def _plain(prefix: str, alphabet: str, count: int, suffix: str = "") -> Make:
    return lambda rng: prefix + _of(rng, alphabet, count) + suffix


def _with_crc(prefix: str) -> Make:
    def make(rng: random.Random) -> str:
        body = _of(rng, BASE62, 30)
        number, digits = zlib.crc32(body.encode()), ""
        for _ in range(6):
            number, digit = divmod(number, 62)
            digits = BASE62[digit] + digits
        return prefix + body + digits

    return make


def _jwt(rng: random.Random) -> str:
    header = {"alg": rng.choice(["HS256", "RS256", "ES256"]), "typ": "JWT", "kid": _of(rng, HEX, 8)}
    claims = {"sub": _of(rng, HEX, 12), "iat": rng.randrange(10**9), "scope": "read write"}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims)]
    return ".".join([*parts, _of(rng, B64URL, 43)])


def _pem(rng: random.Random) -> str:
    kind = rng.choice(["RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED "])
    size = rng.choice([120, 320, 1190, 1600])
    body = base64.b64encode(rng.randbytes(size)).decode()
    lines = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}\n-----END {kind}PRIVATE KEY-----"


def _bot(rng: random.Random) -> str:
    number = str(rng.randrange(10**17, 10**18))
    return f"{base64.b64encode(number.encode()).decode().rstrip('=')}.{_of(rng, B64URL, 6)}.{_of(rng, B64URL, 38)}"


def _age(rng: random.Random) -> str:
    prefix = "age-secret-key-"
    data = [rng.randrange(32) for _ in range(52)]
    expanded = [ord(char) >> 5 for char in prefix] + [0] + [ord(char) & 31 for char in prefix]
    check = 1
    for number in [*expanded, *data, *[0] * 6]:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ number
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= generator if top >> bit & 1 else 0
    check ^= 1
    data += [check >> 5 * (5 - place) & 31 for place in range(6)]
    return (prefix + "1" + "".join(BECH32[number] for number in data)).upper()


def _password(rng: random.Random) -> str:
    """As people make them: a word with its letters changed, a year, a sign; or as a generator does."""
    if rng.random() < 0.5:
        word = rng.choice(["Winter", "Kraken", "Bluebird", "Tomato", "Zeppelin", "Marble"])
        return word.replace("e", "3") + str(rng.randrange(1970, 2030)) + rng.choice("!#$*?")
    return _of(rng, string.ascii_letters + string.digits + "!#*?-_", rng.randrange(12, 24)) + rng.choice("a1!Z")


FAMILIES: dict[str, Make] = {
    "aws-access-key": _plain("AKIA", string.ascii_uppercase + "234567", 16),
    "aws-secret-key": _plain("", B64, 40),
    "gcp-api-key": _plain("AIza", B64URL, 35),
    "gcp-oauth": _plain("GOCSPX-", B64URL, 28),
    "azure-storage-key": _plain("", B64, 86, "=="),
    "azure-client-secret": lambda rng: _of(rng, BASE62, 3) + "8Q~" + _of(rng, BASE62 + "_.-~", 33) + "a",
    "digitalocean-token": _plain("dop_v1_", HEX, 64),
    "databricks-token": _plain("dapi", HEX, 32),
    "vault-token": _plain("hvs.", B64URL, 90),
    "age-key": _age,
    "github-token": lambda rng: _with_crc(rng.choice(["ghp_", "gho_", "ghs_", "ghu_", "ghr_"]))(rng),
    "github-fine-token": lambda rng: f"github_pat_{_of(rng, BASE62, 22)}_{_of(rng, BASE62, 59)}",
    "gitlab-token": _plain("glpat-", B64URL, 20),
    "atlassian-token": _plain("ATATT3xFfGF0", B64URL, 170, "=" + "4F2A19BC"),
    "npm-token": _with_crc("npm_"),
    "pypi-token": _plain("pypi-AgEIcHlwaS5vcmc", B64URL, 150),
    "rubygems-token": _plain("rubygems_", HEX, 48),
    "docker-token": _plain("dckr_pat_", B64URL, 27),
    "slack-token": lambda rng: (
        f"xoxb-{rng.randrange(10**11, 10**12)}-{rng.randrange(10**12, 10**13)}-" + _of(rng, BASE62, 24)
    ),
    "slack-app-token": lambda rng: (
        f"xapp-1-A{_of(rng, BASE62[:36], 10)}-{rng.randrange(10**12, 10**13)}-" + _of(rng, HEX, 64)
    ),
    "slack-webhook": lambda rng: f"T{_of(rng, BASE62[:36], 10)}/B{_of(rng, BASE62[:36], 10)}/{_of(rng, BASE62, 24)}",
    "discord-token": _bot,
    "telegram-token": lambda rng: f"{rng.randrange(10**9, 10**10)}:AA{_of(rng, B64URL, 33)}",
    "anthropic-key": _plain("sk-ant-api03-", B64URL, 93, "AA"),
    "openai-key": lambda rng: f"sk-proj-{_of(rng, B64URL, 60)}T3BlbkFJ{_of(rng, B64URL, 60)}",
    "sk-key": lambda rng: rng.choice(["sk-or-v1-" + _of(rng, HEX, 64), "sk-" + _of(rng, BASE62, 48)]),
    "stripe-key": lambda rng: rng.choice(["sk_live_", "rk_live_", "sk_test_", "whsec_"]) + _of(rng, BASE62, 32),
    "huggingface-token": _plain("hf_", string.ascii_letters, 34),
    "sendgrid-key": lambda rng: f"SG.{_of(rng, B64URL, 22)}.{_of(rng, B64URL, 43)}",
    "twilio-key": _plain("SK", HEX, 32),
    "mailgun-key": _plain("key-", HEX, 32),
    "shopify-token": _plain("shpat_", HEX, 32),
    "linear-key": _plain("lin_api_", BASE62, 40),
    "notion-key": _plain("ntn_", BASE62, 46),
    "jwt": _jwt,
    "private-key": _pem,
    "url-credentials": lambda rng: _of(rng, BASE62, rng.randrange(8, 24)),
    "authorization-header": _plain("", BASE62, 40),
    "assigned-password": _password,
    "assigned-secret": lambda rng: rng.choice([_of(rng, HEX, 32), _of(rng, BASE62, 28), _of(rng, B64, 40) + "="]),
}
"""One maker for each family: a valid secret of it, from a seed."""

_ANYWHERE: dict[str, str] = {
    "dotenv": "NODE_ENV=production\nSERVICE_VALUE={s}\nPORT=8080\n",
    "python": 'client = Client("{s}", timeout=30)\n',
    "yaml": "service:\n  value: {s}\n  replicas: 2\n",
    "json": '{{"name": "app", "value": "{s}"}}\n',
    "shell": "$ export VALUE='{s}'\n$ ./deploy.sh\nDeployed in 3.2s\n",
    "curl": "curl -s -H 'X-Auth: {s}' https://api.internal/v1/things\n",
    "log": "2026-05-01T10:00:00Z INFO connecting with {s}, attempt 1\n",
    "chat": "here is the key, please don't paste it anywhere: {s}",
    "markdown": "Use `{s}` for the staging account.\n",
}

_IN_ITS_PLACE: dict[str, dict[str, str]] = {
    "aws-secret-key": {
        "credentials": "[default]\naws_secret_access_key = {s}\nregion = eu-west-1\n",
        "dotenv": "AWS_SECRET_ACCESS_KEY={s}\n",
        "json": '{{"awsSecretKey": "{s}"}}\n',
        "terraform": 'aws_secret_key = "{s}"\n',
    },
    "azure-storage-key": {
        "connection": "DefaultEndpointsProtocol=https;AccountName=store;AccountKey={s};EndpointSuffix=core.windows.net",
    },
    "slack-webhook": {"curl": "curl -X POST https://hooks.slack.com/services/{s} -d '{{}}'\n"},
    "url-credentials": {
        "dotenv": "DATABASE_URL=postgres://app:{s}@db.internal:5432/app\n",
        "git": "origin\thttps://ci-bot:{s}@git.example.org/team/app.git (fetch)\n",
        "yaml": "broker: amqp://worker:{s}@queue:5672//\n",
        "python": 'redis.from_url("redis://:{s}@cache:6379/0")\n',
    },
    "authorization-header": {
        "curl": 'curl -H "Authorization: Bearer {s}" https://api.internal/\n',
        "json": '{{"headers": {{"Authorization": "Bearer {s}"}}}}\n',
        "http": "GET / HTTP/1.1\r\nHost: api\r\nauthorization: token {s}\r\n\r\n",
    },
    "assigned-password": {
        "python": 'DB_PASSWORD = "{s}"\n',
        "json": '{{"user": "app", "password": "{s}"}}\n',
        "yaml": 'postgres:\n  password: "{s}"\n',
        "php": "'db_password' => '{s}',\n",
    },
    "assigned-secret": {
        "dotenv": "SESSION_SECRET={s}\n",
        "python": 'API_KEY = "{s}"\n',
        "yaml": "client_secret: {s}\n",
        "json": '{{"apiKey": "{s}", "n": 1}}\n',
        "toml": 'auth_token = "{s}"\n',
        "shell": "export GATEWAY_TOKEN={s}\n",
    },
}


def samples(seed: int = 20260501, each: int = 4) -> Iterator[Sample]:
    """``each`` secrets of each family in each place where it may stand."""
    rng = random.Random(seed)
    for family, make in FAMILIES.items():
        for place, template in _IN_ITS_PLACE.get(family, _ANYWHERE).items():
            for _ in range(each):
                secret = make(rng)
                text = template.format(s=json.dumps(secret)[1:-1] if place == "json" else secret)
                yield Sample(family, place, text, json.dumps(secret)[1:-1] if place == "json" else secret)


def made_up(family: str, seed: int = 1) -> str:
    """One secret of ``family``."""
    return FAMILIES[family](random.Random(seed))


def negatives(seed: int = 7) -> dict[str, str]:
    """Texts without a secret, by what they are: files that hold what is as random as one, and prose about some."""
    rng = random.Random(seed)
    digests = "\n".join(f"{hashlib.sha256(rng.randbytes(8)).hexdigest()}  src/part_{n}.c" for n in range(2000))
    identifiers = "\n".join(f'  {{"id": "{uuid.UUID(bytes=rng.randbytes(16))}", "n": {n}}},' for n in range(2000))
    sums = "\n".join(
        f"example.org/mod{n} v1.{n % 9}.0 h1:{base64.b64encode(rng.randbytes(32)).decode()}" for n in range(2000)
    )
    lock = ",\n".join(
        f'    "node_modules/p{n}": {{"version": "1.{n % 30}.2", "resolved": "https://pkgs.example.org/p{n}/-/p{n}.tgz",'
        f' "integrity": "sha512-{base64.b64encode(rng.randbytes(64)).decode()}"}}'
        for n in range(1500)
    )
    pinned = "\n".join(f"part{n}==1.{n}.0 \\\n    --hash=sha256:{rng.randbytes(32).hex()}" for n in range(1000))
    image = base64.b64encode(rng.randbytes(200_000)).decode()
    names = ["token", "secret", "key", "apiKey", "password", "auth", "e", "t", "n", "state"]
    minified = "".join(
        f"function {_of(rng, string.ascii_letters, 2)}({rng.choice(names)}){{return this.{rng.choice(names)}="
        f"{rng.choice(names)}.{_of(rng, string.ascii_letters, 6)}({rng.randrange(1 << 24)}),"
        f"{_of(rng, string.ascii_letters, 1)}?{rng.choice(names)}:void 0}}"
        for _ in range(4000)
    )
    commits = "\n".join(f"{rng.randbytes(20).hex()} Merge branch 'fix-{n}' into main" for n in range(2000))
    texts = {
        "sha256sum": digests,
        "uuids": f"[\n{identifiers}\n]",
        "go.sum": sums,
        "package-lock.json": f'{{\n  "packages": {{\n{lock}\n  }}\n}}',
        "requirements.lock": pinned,
        "image.svg": f'<svg><image href="data:image/png;base64,{image}"/></svg>',
        "app.min.js": minified,
        "git log": commits,
    }
    for path in sorted(DATA.glob("*.txt")):
        texts[path.name] = path.read_text()
    return texts
