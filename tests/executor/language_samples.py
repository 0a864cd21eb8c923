"""One small set of programs for each language: what it says, what it does when it is broken, and that it can be killed.

Pure data, for the tests of languages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Programs of one language."""

    language: str
    hello: str
    """Reads a line, and prints `hello ` and that line."""
    broken: str
    """Not valid; what is said about it names `said`. Empty: nothing is."""
    said: str
    endless: str
    """Never ends. Empty: everything does."""


C_ENDLESS = "int main(void) { for (volatile int i = 0;; i++); }"

SAMPLES = (
    Sample(
        "python",
        "print('hello', input())",
        "print('hello'",
        "SyntaxError",
        "while True: pass",
    ),
    Sample(
        "bash", 'read line; echo "hello $line"', "if true; then echo", "syntax error", "while true; do sleep 1; done"
    ),
    Sample("perl", 'my $l = <STDIN>; print "hello $l";', "my $x = ;", "syntax error", "while (1) {}"),
    Sample(
        "php",
        'echo "hello ", fgets(STDIN);',
        "<?php echo (;",
        "syntax error",
        "<?php while (true) { sleep(1); }",
    ),
    Sample("ruby", 'puts "hello #{gets}"', "def f(", "syntax error", "loop { sleep 1 }"),
    Sample("lua", 'print("hello " .. io.read())', "print(", "unexpected symbol", "while true do end"),
    Sample(
        "R",
        'line <- readLines(file("stdin"), n = 1); cat("hello", line, "\\n", sep = " ")',
        "x <- (",
        "unexpected end of input",
        "while (TRUE) Sys.sleep(1)",
    ),
    Sample("julia", 'println("hello ", readline())', "f(", "ParseError", "while true sleep(1) end"),
    Sample(
        "racket",
        '#lang racket/base\n(printf "hello ~a\\n" (read-line))',
        "#lang racket/base\n(display (",
        "expected a `)`",
        "#lang racket/base\n(let loop () (sleep 1) (loop))",
    ),
    Sample(
        "sql",
        "create table t (x); insert into t values ('hello '); select x || 'world' from t;",
        "selekt 1;",
        "syntax error",
        "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n;",
    ),
    Sample("text", "hello world\n", "", "", ""),
    Sample(
        "nodejs",
        "console.log('hello ' + require('fs').readFileSync(0, 'utf8').trim());",
        "let x = ;",
        "SyntaxError",
        "setInterval(() => {}, 1000);",
    ),
    Sample(
        "typescript",
        "import { readFileSync } from 'fs';\nconst line: string = readFileSync(0, 'utf8').trim();\n"
        "console.log(`hello ${line}`);",
        "const x: number = ;",
        "Unexpected",
        "setInterval((): void => {}, 1000);",
    ),
    Sample(
        "c",
        '#include <stdio.h>\nint main(void) { char l[99]; fgets(l, 99, stdin); printf("hello %s", l); }',
        "int main(void) { return x; }",
        "undeclared (first use",
        C_ENDLESS,
    ),
    Sample(
        "cpp",
        "#include <iostream>\n#include <string>\n"
        'int main() { std::string l; std::getline(std::cin, l); std::cout << "hello " << l << std::endl; }',
        "int main() { return x; }",
        "was not declared in this scope",
        "int main() { for (volatile int i = 0;; i++); }",
    ),
    Sample(
        "rust",
        "use std::io;\nfn main() { let mut l = String::new(); io::stdin().read_line(&mut l).unwrap(); "
        'print!("hello {}", l); }',
        "fn main() { x; }",
        "cannot find value `x`",
        "fn main() { loop { std::thread::sleep(std::time::Duration::from_secs(1)); } }",
    ),
    Sample(
        "go",
        'package main\nimport ("bufio"; "fmt"; "os")\n'
        'func main() { l, _ := bufio.NewReader(os.Stdin).ReadString(10); fmt.Print("hello ", l) }',
        "package main\nfunc main() { x() }",
        "undefined: x",
        "package main\nfunc main() { for {} }",
    ),
    Sample(
        "D_ut",
        'import std.stdio;\nunittest { write("hello ", readln()); assert(1 + 1 == 2); }\nvoid main() {}',
        "void main() { x(); }",
        "undefined identifier `x`",
        "void main() { while (true) {} }",
    ),
    Sample(
        "swift",
        'print("hello \\(readLine()!)")',
        "let x: Int = y",
        "cannot find 'y'",
        "while true {}",
    ),
    Sample(
        "csharp",
        'using System;\nclass P { static void Main() { Console.WriteLine("hello " + Console.ReadLine()); } }',
        "class P { static void Main() { x(); } }",
        "`x' does not exist",
        "class P { static void Main() { while (true) System.Threading.Thread.Sleep(1000); } }",
    ),
    Sample(
        "verilog",
        'module tb; initial begin $display("hello world"); $finish; end endmodule',
        "module tb; initial begin $display( end endmodule",
        "syntax error",
        "module tb; reg clk = 0; always #1 clk = ~clk; endmodule",
    ),
    Sample(
        "java",
        "import java.util.Scanner;\npublic class Main { public static void main(String[] args) {\n"
        'System.out.println("hello " + new Scanner(System.in).nextLine() + new Helper()); } }\n'
        'class Helper { public String toString() { return ""; } }',
        "public class Main { public static void main(String[] args) { x(); } }",
        "cannot find symbol",
        "public class Main { public static void main(String[] args) throws Exception "
        "{ while (true) Thread.sleep(1000); } }",
    ),
    Sample(
        "scala",
        'object Hello { def main(args: Array[String]): Unit = println("hello " + scala.io.StdIn.readLine()) }',
        "object Hello { def main(args: Array[String]): Unit = x() }",
        "not found: value x",
        "object Hello { def main(args: Array[String]): Unit = while (true) Thread.sleep(1000) }",
    ),
    Sample(
        "kotlin_script",
        'println("hello " + readLine())',
        "println(x)",
        "unresolved reference",
        "while (true) Thread.sleep(1000)",
    ),
    Sample(
        "lean",
        'def main : IO Unit := pure ()\n#eval IO.println "hello world"',
        "theorem t : 1 = 2 := rfl",
        "error",
        "#eval (do while true do IO.sleep 1000 : IO Unit)",
    ),
    Sample(
        "pytest",
        "def test_hello():\n    assert 'hello world'.split() == ['hello', 'world']",
        "def test_hello():\n    assert 1 == 2",
        "assert 1 == 2",
        "def test_hello():\n    while True: pass",
    ),
    Sample(
        "go_test",
        'package main\nimport "testing"\nfunc TestHello(t *testing.T) { println("hello world") }',
        'package main\nimport "testing"\nfunc TestHello(t *testing.T) { t.Error("it is broken") }',
        "it is broken",
        'package main\nimport "testing"\nfunc TestHello(t *testing.T) { for {} }',
    ),
    Sample(
        "jest",
        "import { expect, test } from '@jest/globals';\n"
        "test('hello', () => { const x: string = 'hello world'; expect(x).toBe('hello world'); });",
        "test('hello', () => { expect(1).toBe(2); });",
        "Expected: 2",
        "test('hello', () => { while (true); });",
    ),
    Sample(
        "junit",
        "import org.junit.jupiter.api.Test;\nimport static org.junit.jupiter.api.Assertions.*;\n"
        "public class Adder { static int add(int a, int b) { return a + b; } }\nclass AdderTest { @Test void hello() "
        '{ System.out.println("hello world"); assertEquals(3, Adder.add(1, 2)); } }',
        "import org.junit.jupiter.api.Test;\nclass AdderTest { @Test void hello() { x(); } }",
        "cannot find symbol",
        "import org.junit.jupiter.api.Test;\nclass AdderTest { @Test void hello() throws Exception "
        "{ while (true) Thread.sleep(1000); } }",
    ),
)
"""Every language has one."""
