"""Code that a zygote runs once with each package when it starts: it pays for lazy imports and first-use caches.

Measured: a sympy integral takes 450 ms in a process that only imported sympy, and 69 ms in one that has done another.
"""

from __future__ import annotations

BASE = """
import abc, ast, bisect, collections, copy, dataclasses, datetime, decimal, enum, fractions, functools, heapq
import inspect, io, itertools, json, math, operator, random, re, string, textwrap, threading, time, traceback, typing
import contextlib, statistics, linecache, tokenize, types, importlib.machinery, weakref
class A:
    def f(self, x): return [i * i for i in range(x)]
try: 1 / 0
except ZeroDivisionError: traceback.format_exc()
json.loads(json.dumps({"a": [1, 2.5, None], "b": "c"}))
re.findall(r"(\\w+)-(\\d+)", "a-1 b-2")
f"{3.14159:.2f}", "a b c".split(), sorted({str(i): i for i in range(50)}), A().f(3)
@dataclasses.dataclass
class B:
    x: int = 0
B(), fractions.Fraction(1, 3) + 1, decimal.Decimal("1.1") + 1, datetime.datetime(2000, 1, 1).isoformat()
with open("/dev/null", "w") as sink: print(1, file=sink)
"""

EXERCISES = {
    "numpy": """
import numpy as np
import numpy.random, numpy.linalg, numpy.fft
a = np.arange(12.0).reshape(3, 4)
str(a), repr(a), a.sum(), a.mean(axis=0), a @ a.T, np.linalg.solve(np.eye(3) * 2, np.ones(3)), np.fft.fft(a[0])
np.random.rand(3), np.random.default_rng(0).normal(size=3), np.sort(a), np.unique(a), np.sqrt(a), np.array2string(a)
""",
    "pandas": """
import pandas as pd, io
df = pd.DataFrame({"a": [1, 2, 3], "b": list("xyx"), "c": [0.5, 1.5, None]})
str(df), df.describe(), df.groupby("b").a.sum(), str(df.groupby("b").a.mean()), df.merge(df, on="b")
df.sort_values("a"), df.isna().sum()
df.to_csv(), pd.read_csv(io.StringIO("a,b\\n1,2\\n3,4")), df.to_string(), df.pivot_table(values="a", index="b")
df.a.rolling(2).mean(), df.fillna(0), pd.to_datetime(["2020-01-01"]), df["b"].str.upper()
str(df.dtypes), str(df.a), df.a.sum(), df.apply(lambda row: row.a, axis=1)
""",
    "scipy": """
import scipy, numpy as np
import scipy.stats, scipy.optimize, scipy.integrate, scipy.linalg, scipy.sparse, scipy.special
scipy.optimize.minimize(lambda x: (x**2).sum(), np.ones(2)), scipy.integrate.quad(np.sin, 0, 1)
scipy.stats.norm.cdf(0.5), scipy.linalg.inv(np.eye(2)), scipy.special.comb(5, 2, exact=True)
""",
    "sympy": """
import sympy as sp
x, y = sp.symbols("x y")
str(sp.integrate(sp.sin(x) * x, x)), sp.solve(x**2 - 2, x), sp.diff(sp.exp(x) * x, x)
sp.simplify(sp.sin(x)**2 + sp.cos(x)**2)
sp.solve([x + y - 3, x - y - 1], [x, y]), sp.factor(x**2 - 1), sp.expand((x + 1)**3), sp.limit(sp.sin(x) / x, x, 0)
sp.latex(x**2), sp.factorint(360), sp.isprime(97), sp.Rational(1, 3) + 1, sp.series(sp.exp(x), x, 0, 3), sp.N(sp.pi, 20)
sp.Matrix([[1, 2], [3, 4]]).inv(), sp.summation(x, (x, 1, 10)), sp.sympify("x**2 + 1"), sp.solve(x**2 + 2*x + 1)
""",
    "matplotlib": """
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt, io
figure, axes = plt.subplots()
axes.plot([1, 2, 3], [1, 4, 9], label="a")
axes.set_title("t")
axes.legend()
figure.savefig(io.BytesIO(), format="png")
plt.close(figure)
""",
}
"""Package -> source. The sources may assume that the package is there."""

TYPICAL = {
    "numpy": (
        "import numpy as np\nprint(np.arange(4).sum())\n",
        "import numpy as np\na = np.array([1.0, 2.0, 3.0])\nprint((a * 2).mean(), a[1:].max())\n",
    ),
    "pandas": (
        "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})\nprint(df.a.sum(), df.shape)\n",
        "import pandas as pd\ndf = pd.DataFrame([[1, 2.0], [3, 4.0]], columns=['c', 'd'])\nprint(df['d'].mean())\n",
    ),
    "sympy": (
        "import sympy as sp\nx = sp.Symbol('x')\nprint(sp.diff(sp.sin(x) * x, x), sp.simplify(x + x))\n",
        "from sympy import symbols, solve\ny, z = symbols('y z')\nprint(solve([y + z - 2, y - z], [y, z]))\n",
    ),
}
"""Package -> two small programs of the usual kind. What both write to in memory, workers have copied ahead."""
