// Starts the stand-in of a vendor and gives its address and a way to end it.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { mkdtempSync, rmSync } from "node:fs";
import { spawnSync } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";

export async function start(vendor) {
  const root = fileURLToPath(new URL("../..", import.meta.url));
  const dir = mkdtempSync(join(tmpdir(), "stub-"));
  const binary = join(dir, "stubserver");
  const built = spawnSync("go", ["build", "-o", binary, "./internal/provider/stubserver"], { cwd: root, stdio: "inherit" });
  assert.equal(built.status, 0);
  const child = spawn(binary, ["-vendor", vendor], { stdio: ["ignore", "pipe", "inherit"] });
  const [line] = await new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).once("line", (l) => resolve([l]));
    child.once("exit", () => reject(new Error("the stand-in did not start")));
  });
  return {
    url: line.trim(),
    // stop fails when a request broke a rule that was not expected to.
    async stop(expected = []) {
      const broken = (await (await fetch(line.trim() + "/violations")).text()).split("\n").filter(Boolean);
      child.kill("SIGINT");
      rmSync(dir, { recursive: true });
      assert.deepEqual(broken, expected);
    },
  };
}
